//! The checksum over the superblock: CRC-32C (Castagnoli) without the final inversion, as the kernel's `crc32c()` computes it.

const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { (rest >> 1) ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// Goes on from `seed`, which is `u32::MAX` for the first bytes.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |sum, &byte| (sum >> 8) ^ TABLE[usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4: the inverted sums of 32 zeros, 32 ones, and 0 to 31.
    #[test]
    fn known_answers() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, sum) in
            [(&[0; 32][..], 0x8A91_36AA), (&[0xFF; 32], 0x62A8_AB43), (&ascending, 0x46DD_794E)]
        {
            assert_eq!(!crc32c(u32::MAX, bytes), sum);
        }
    }
}
