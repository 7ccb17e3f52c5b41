//! Patterns of KEYS and SCAN, as Redis's `stringmatchlen` reads them.

/// Whether `text` matches `pattern`: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a character that stands for itself.
///
/// The time is at most proportional to the product of both lengths: the search goes back only to the last star.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to continue if the pattern behind the last star does not match: the offset behind it, and one in the text.
    let mut back: Option<(usize, usize)> = None;
    while position < text.len() {
        if pattern.get(at) == Some(&b'*') {
            back = Some((at + 1, position));
            at += 1;
            continue;
        }
        if let Some(next) = one(pattern, at, text[position]) {
            (at, position) = (next, position + 1);
            continue;
        }
        let Some((behind, tried)) = back else { return false };
        (at, position) = (behind, tried + 1);
        back = Some((behind, tried + 1));
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Matches one byte. Gives the offset of the rest of the pattern.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => class(pattern, at + 1, byte),
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte).then_some(at + 2),
        other => (other == byte).then_some(at + 1),
    }
}

/// Matches a byte against the class that begins at `at`. A class without an end reaches to the end of the pattern.
fn class(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    let mut at = at;
    let inverted = pattern.get(at) == Some(&b'^');
    at += usize::from(inverted);
    let mut found = false;
    loop {
        match pattern.get(at) {
            None => break,
            Some(b']') => {
                at += 1;
                break;
            }
            Some(b'\\') if at + 1 < pattern.len() => {
                found |= pattern[at + 1] == byte;
                at += 2;
            }
            Some(&first) if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                let last = pattern[at + 2];
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                at += 3;
            }
            Some(&other) => {
                found |= other == byte;
                at += 1;
            }
        }
    }
    (found != inverted).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("[ab", "a", true),
            ("", "", true),
            ("", "a", false),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "a*".repeat(100) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(10_000).as_bytes()));
    }
}
