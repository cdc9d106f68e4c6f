//! Text that processes choose and others are shown, on terminals and in JSON.

/// Stands for a character that is not shown.
const REPLACEMENT: char = '?';

/// The first `chars_max` characters of `text`. Controls (C0 and C1), characters that change the
/// direction of text, separators of lines, and others without a shape of their own are replaced.
pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    let chars = text.chars().take(chars_max);
    chars
        .map(|c| if is_shown(c) { c } else { REPLACEMENT })
        .collect()
}

/// Whether a character can be seen, or belongs to the one before it, as accents do.
fn is_shown(c: char) -> bool {
    // Letters, spaces or symbols by the standard's tables, which draw nothing.
    const BLANK: [char; 6] = [
        '\u{34f}', '\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}',
    ];
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // The standard library escapes what is not printable. Accents only at the beginning of a text.
    let mut after_letter = String::from("a");
    after_letter.push(c);
    let is_variation = matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}');
    !is_variation && !BLANK.contains(&c) && after_letter.escape_debug().eq(after_letter.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_replaces_what_has_no_shape() {
        let unseen = "\0\n\x1b\x7f\u{80}\u{9b}\u{ad}\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\
                      \u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\
                      \u{fff9}\u{e0001}\u{e0041}\u{34f}\u{180e}\u{fe0f}\u{3164}\u{2800}\u{a0}";
        for c in unseen.chars() {
            assert_eq!(shown(&format!("a{c}b"), 9), "a?b", "{c:?}");
        }
    }

    #[test]
    fn shown_keeps_letters_of_all_scripts_and_their_accents() {
        for text in [
            "rping -s\\\"'",
            "größe",
            "e\u{301}",
            "программа",
            "प्रोग्राम",
            "程序",
            "🦀",
        ] {
            assert_eq!(shown(text, 64), text);
        }
        assert_eq!(shown("abcdef", 4), "abcd");
    }
}
