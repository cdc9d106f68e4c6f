//! Unpredictable numbers for keys.

/// Four unpredictable octets; aborts if the system has none, as a predictable key grants access.
pub(super) fn random_u32() -> u32 {
    getrandom::u32().unwrap_or_else(|error| no_random_octets(error))
}

/// Unpredictable words, by one call of the system; as [`random_u32`].
pub(super) fn random_words(words: &mut [u32]) {
    let mut octets = vec![0; size_of_val(words)];
    if let Err(error) = getrandom::fill(&mut octets) {
        no_random_octets(error);
    }
    let (read, _) = octets.as_chunks();
    for (word, octets) in words.iter_mut().zip(read) {
        *word = u32::from_ne_bytes(*octets);
    }
}

/// Unpredictable numbers, many of which are drawn from the system at once. Each is given once.
#[derive(Debug, Default)]
pub(super) struct Seeds(Vec<u32>);

impl Seeds {
    /// Eight unpredictable octets; as [`random_u32`].
    pub(super) fn next(&mut self) -> u64 {
        #[cfg(test)]
        if let Some(bits) = crate::check::random() {
            return bits;
        }
        loop {
            if let (Some(high), Some(low)) = (self.0.pop(), self.0.pop()) {
                return u64::from(high) << 32 | u64::from(low);
            }
            self.0.resize(64, 0);
            random_words(&mut self.0);
        }
    }
}

/// Eight unpredictable octets; as [`random_u32`].
pub(super) fn random_u64() -> u64 {
    #[cfg(test)]
    if let Some(bits) = crate::check::random() {
        return bits;
    }
    getrandom::u64().unwrap_or_else(|error| no_random_octets(error))
}

#[cold]
fn no_random_octets(error: getrandom::Error) -> ! {
    eprintln!("urdma: cannot get random octets for keys from the system: {error}");
    std::process::abort()
}
