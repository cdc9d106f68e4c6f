//! The ephemeral ports of a table that are free.

/// First ephemeral port (as in `ip_local_port_range`).
pub(super) const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_LAST: u16 = 60_999;
/// Ephemeral ports.
pub(super) const EPHEMERAL: usize = (EPHEMERAL_LAST - EPHEMERAL_FIRST) as usize + 1;
const WORDS: usize = EPHEMERAL.div_ceil(64);

/// A bit for each ephemeral port.
#[derive(Debug)]
pub(super) struct FreePorts {
    words: Box<[u64; WORDS]>,
    count: usize,
    /// The bit after that of the port which was given last.
    next: usize,
}

impl Default for FreePorts {
    fn default() -> Self {
        let mut words = Box::new([u64::MAX; WORDS]);
        words[WORDS - 1] = u64::MAX >> (WORDS * 64 - EPHEMERAL);
        Self {
            words,
            count: EPHEMERAL,
            next: 0,
        }
    }
}

impl FreePorts {
    /// How many are free.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a port is an ephemeral one, and free.
    pub(super) fn has(&self, port: u16) -> bool {
        bit_of(port).is_some_and(|bit| self.words[bit / 64] & 1 << (bit % 64) != 0)
    }

    /// A free port, which follows the one before; it stays free until [`Self::take`].
    pub(super) fn next(&mut self) -> Option<u16> {
        let (first, low) = (self.next / 64, u64::MAX << (self.next % 64));
        // The first word comes twice: from its bit on, and at last as a whole.
        let found = (0..=WORDS).find_map(|step| {
            let index = (first + step) % WORDS;
            let word = self.words[index] & if step == 0 { low } else { u64::MAX };
            (word != 0).then(|| index * 64 + word.trailing_zeros() as usize)
        })?;
        self.next = (found + 1) % EPHEMERAL;
        u16::try_from(found)
            .ok()
            .map(|offset| EPHEMERAL_FIRST + offset)
    }

    /// A port is taken; nothing changes unless it is free.
    pub(super) fn take(&mut self, port: u16) {
        if let Some(bit) = bit_of(port).filter(|_| self.has(port)) {
            self.words[bit / 64] &= !(1 << (bit % 64));
            self.count -= 1;
        }
    }

    /// A port is free again.
    pub(super) fn give_back(&mut self, port: u16) {
        if let Some(bit) = bit_of(port).filter(|_| !self.has(port)) {
            self.words[bit / 64] |= 1 << (bit % 64);
            self.count += 1;
        }
    }
}

/// Whether a port is one of those that are given for port 0.
pub(super) fn is_ephemeral(port: u16) -> bool {
    bit_of(port).is_some()
}

fn bit_of(port: u16) -> Option<usize> {
    let bit = usize::from(port.checked_sub(EPHEMERAL_FIRST)?);
    (bit < EPHEMERAL).then_some(bit)
}
