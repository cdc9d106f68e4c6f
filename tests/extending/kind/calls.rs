//! Calls on queue pairs that take packets and drop them.

use crate::engine::Engine;

impl Engine {
    /// A new one with an index that no queue pair has.
    pub fn add_sink(&self, index: u16) {
        self.shard.lock().qps.kinds.sinks.taken.put(index, 0);
    }

    /// The packets that it has taken; `None`: there is none.
    pub fn taken_by_sink(&self, index: u16) -> Option<u64> {
        self.shard.lock().qps.kinds.sinks.taken.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use crate::rig::{engine, instance};

    #[test]
    fn queue_pair_of_the_kind_is_there() {
        let engine = engine(&instance(), 1);
        engine.add_sink(1);
        assert_eq!(engine.taken_by_sink(1), Some(0));
        assert_eq!(engine.taken_by_sink(2), None);
    }
}
