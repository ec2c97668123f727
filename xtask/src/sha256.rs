//! SHA-256 (FIPS 180-4), so that checking a file needs neither a crate nor a program.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use crate::failure::{Context, Result};

/// A running hash.
pub(crate) struct Sha256 {
    state: [u32; 8],
    block: [u8; 64],
    filled: usize,
    bytes: u64,
}

impl Sha256 {
    pub(crate) fn new() -> Self {
        Self { state: START, block: [0; 64], filled: 0, bytes: 0 }
    }

    pub(crate) fn update(&mut self, mut data: &[u8]) {
        self.bytes += data.len() as u64;
        while !data.is_empty() {
            let taken = data.len().min(64 - self.filled);
            self.block[self.filled..self.filled + taken].copy_from_slice(&data[..taken]);
            self.filled += taken;
            data = &data[taken..];
            if self.filled == 64 {
                compress(&mut self.state, &self.block);
                self.filled = 0;
            }
        }
    }

    /// Adds a named part with its length, so that no two lists of parts give the same stream of bytes.
    pub(crate) fn part(&mut self, name: &str, data: &[u8]) {
        self.update(format!("{}:{name}{}:", name.len(), data.len()).as_bytes());
        self.update(data);
    }

    /// The hash as 64 hexadecimal digits.
    pub(crate) fn finish(mut self) -> String {
        let bits = self.bytes * 8;
        self.update(&[0x80]);
        while self.filled != 56 {
            self.update(&[0]);
        }
        self.update(&bits.to_be_bytes());
        self.state.iter().fold(String::with_capacity(64), |mut text, word| {
            let _ = write!(text, "{word:08x}");
            text
        })
    }
}

/// The hash of some bytes.
#[cfg(test)]
pub(crate) fn of_bytes(data: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(data);
    hash.finish()
}

/// The hash of a file's content.
pub(crate) fn of_file(path: &Path) -> Result<String> {
    let what = || format!("reading {}", path.display());
    let mut file = std::fs::File::open(path).context(what)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).context(what)? {
            0 => return Ok(hash.finish()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for i in 16..64 {
        let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
        let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for i in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(ROUND[i]).wrapping_add(w[i]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(s0).wrapping_add(majority));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

#[rustfmt::skip]
const ROUND: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_examples() {
        let cases: [(&[u8], &str); 3] = [
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
        ];
        for (data, expected) in cases {
            assert_eq!(of_bytes(data), expected);
        }
    }

    #[test]
    fn a_million_letters_in_odd_pieces() {
        let mut hash = Sha256::new();
        let mut left = 1_000_000;
        while left > 0 {
            let piece = left.min(977);
            hash.update(&vec![b'a'; piece]);
            left -= piece;
        }
        assert_eq!(hash.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }

    #[test]
    fn parts_do_not_run_together() {
        let of = |parts: &[(&str, &str)]| {
            let mut hash = Sha256::new();
            parts.iter().for_each(|(name, data)| hash.part(name, data.as_bytes()));
            hash.finish()
        };
        assert_ne!(of(&[("a", "bc")]), of(&[("ab", "c")]));
        assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "b1:c1:d")]));
    }

    #[test]
    fn a_file_hashes_like_its_bytes() {
        let folder = crate::project::scratch("sha");
        let file = folder.join("f");
        std::fs::write(&file, vec![7; 3_000_001]).unwrap();
        assert_eq!(of_file(&file).unwrap(), of_bytes(&vec![7; 3_000_001]));
        assert!(of_file(&folder.join("missing")).unwrap_err().0.contains("missing"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
