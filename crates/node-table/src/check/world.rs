//! The owner under random changes, and the plain map beside it.

use std::collections::BTreeMap;

use super::log::{Log, Moment};
use super::{key, target, Finding, Rng};
use crate::fault::Faults;
use crate::{ChangeError, Found, Geometry, Table};

/// What the table has of a node from a change on: the change begins and ends at these moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) begin: Moment,
    pub(super) end: Moment,
    pub(super) found: Option<Found>,
}

/// A table that was created in the memory, and the moments at which that began and ended.
pub(super) struct Created {
    pub(super) begin: Moment,
    pub(super) end: Moment,
    pub(super) geometry: Geometry,
}

pub(super) struct World {
    pub(super) table: Option<Table<Log>>,
    pub(super) created: Vec<Created>,
    /// The states of each node, in order. The first is that it is absent.
    pub(super) states: Vec<Vec<State>>,
    buckets_max: u32,
    faults: Faults,
}

impl World {
    pub(super) fn new(faults: Faults, rng: &mut Rng) -> Self {
        let buckets_max = rng.between(2, 12) as u32;
        let geometry = Geometry {
            epoch: 1,
            seed: 0,
            buckets: buckets_max,
        };
        let zeroes = rng.percent(50);
        let len = geometry.len_octets() / 8 + rng.below(4);
        let words = (0..len).map(|_| if zeroes { 0 } else { rng.bits() });
        let memory = Log::new(words.collect::<Vec<_>>().into_iter());
        let nodes = rng.between(2, u64::from(buckets_max) * 3);
        let absent = State {
            begin: 0,
            end: 0,
            found: None,
        };
        let mut world = Self {
            table: None,
            created: Vec::new(),
            states: vec![vec![absent]; nodes as usize],
            buckets_max,
            faults,
        };
        world.create(memory, rng);
        world
    }

    fn create(&mut self, memory: Log, rng: &mut Rng) {
        let geometry = Geometry {
            epoch: 1 + self.created.len() as u16,
            seed: rng.bits(),
            buckets: rng.between(2, u64::from(self.buckets_max)) as u32,
        };
        let begin = memory.now + 1;
        let table = Table::create_with(memory, geometry, self.faults).expect("it fits");
        let end = table.memory().now;
        self.table = Some(table);
        self.created.push(Created {
            begin,
            end,
            geometry,
        });
        for node in 0..self.states.len() {
            if self.found(node).is_some() {
                self.note(node, begin, None);
            }
        }
    }

    pub(super) fn table(&self) -> &Table<Log> {
        self.table.as_ref().expect("there is always one")
    }

    pub(super) fn now(&self) -> Moment {
        self.table().memory().now
    }

    fn found(&self, node: usize) -> Option<Found> {
        self.states[node].last().and_then(|state| state.found)
    }

    fn note(&mut self, node: usize, begin: Moment, found: Option<Found>) {
        let end = self.now();
        self.states[node].push(State { begin, end, found });
    }

    /// Another table in the same memory.
    pub(super) fn create_again(&mut self, rng: &mut Rng) {
        let table = self.table.take().expect("there is always one");
        self.create(table.into_memory(), rng);
    }

    /// One change of a random node.
    pub(super) fn change(&mut self, removes_percent: u64, rng: &mut Rng) -> Result<(), Finding> {
        let node = rng.below_len(self.states.len());
        let key = key(node as u32);
        let begin = self.now() + 1;
        let before = self.found(node);
        let target = target(rng);
        let table = self.table.as_mut().expect("there is always one");
        let removes = rng.percent(removes_percent);
        let changed = match (before, removes) {
            (None, true) => table.remove(key).map(|()| None),
            (None, false) => table.insert(key, target).map(Some),
            (Some(_), true) => table.remove(key).map(|()| None),
            (Some(_), false) => {
                if table.insert(key, target) != Err(ChangeError::Known) {
                    return Err(format!("node {node} was inserted twice"));
                }
                table.update(key, target).map(Some)
            }
        };
        match changed {
            Ok(generation) => {
                if before.is_some() && before.map(|found| found.generation) == generation {
                    return Err(format!("an update of node {node} kept its generation"));
                }
                let found = generation.map(|generation| Found { target, generation });
                self.note(node, begin, found);
            }
            Err(ChangeError::Unknown) if before.is_none() && removes => {}
            Err(ChangeError::Full) if before.is_none() && !removes => {}
            Err(error) => return Err(format!("node {node}, {before:?}: {error}")),
        }
        Ok(())
    }

    /// Compares the owner's side with the map.
    pub(super) fn compare(&self) -> Result<(), Finding> {
        let table = self.table();
        let mut nodes = BTreeMap::new();
        for node in 0..self.states.len() {
            let found = self.found(node);
            if table.find(key(node as u32)) != found {
                return Err(format!("the owner does not find node {node} as {found:?}"));
            }
            found.map(|found| nodes.insert(node, found));
        }
        if table.len() as usize != nodes.len() {
            return Err(format!(
                "{} nodes are counted of {}",
                table.len(),
                nodes.len()
            ));
        }
        match table.hints_are_exact() {
            true => Ok(()),
            false => Err("a hint is set that no entry needs, or missing".into()),
        }
    }
}
