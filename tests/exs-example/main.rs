//! A program over a byte stream: `server 192.0.2.1:7471`, then `client 192.0.2.1:7471`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use urdma_exs::{ByteStream, Listener, Options};

fn serve(at: SocketAddr) -> io::Result<()> {
    let listener = Listener::bind(at)?;
    println!("listening");
    let mut stream = ByteStream::accept(&listener, &Options::default())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    stream.write_all(text.to_uppercase().as_bytes())?;
    stream.close()
}

fn ask(server: SocketAddr) -> io::Result<()> {
    let mut stream = ByteStream::connect(server, &Options::default())?;
    stream.write_all(b"hello")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    stream.close()
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let address = arguments[2].parse().map_err(io::Error::other)?;
    match arguments[1].as_str() {
        "server" => serve(address),
        _ => ask(address),
    }
}
