//! Random numbers that a seed repeats, and values at the borders of ranges.

/// splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.u64().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    pub(crate) fn u16(&mut self) -> u16 {
        let [a, b, ..] = self.u64().to_le_bytes();
        u16::from_le_bytes([a, b])
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.u64().to_le_bytes()[0]
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.u64() % limit as u64).unwrap_or(0)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn fill(&mut self, octets: &mut [u8]) {
        octets.fill_with(|| self.u8());
    }

    /// A number of a kind that parsers get wrong: of `near`, at a border, or any.
    pub(crate) fn border16(&mut self, near: u16) -> u16 {
        let any = self.u16();
        self.one_of(&[
            0,
            1,
            0x7fff,
            0x8000,
            0xffff,
            near,
            near.wrapping_add(1),
            any,
        ])
    }

    /// As [`Random::border16`].
    pub(crate) fn border32(&mut self, near: u32) -> u32 {
        let any = self.u32();
        let next = near.wrapping_add(1);
        self.one_of(&[
            0,
            1,
            0xff_ffff,
            0x100_0000,
            0x7fff_ffff,
            u32::MAX,
            near,
            next,
            any,
        ])
    }

    /// As [`Random::border16`].
    pub(crate) fn border64(&mut self, near: u64) -> u64 {
        let any = self.u64();
        let small = u64::from(self.u16());
        self.one_of(&[0, 1, 65_536, u64::MAX, u64::MAX - 63, near, small, any])
    }
}
