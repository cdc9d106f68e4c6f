//! Tables whose places are used again under another generation.

/// A place and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// A table by [`Id`].
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Adds a value; none if there are 2^32 - 1.
    pub(crate) fn add(&mut self, value: T) -> Option<Id> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.places.len()).ok()?;
                let empty = Place {
                    generation: 0,
                    value: None,
                };
                self.places.push(empty);
                slot
            }
        };
        let place = self.places.get_mut(slot as usize)?;
        place.value = Some(value);
        Some(Id {
            slot,
            generation: place.generation,
        })
    }

    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        let place = self.places.get(id.slot as usize)?;
        if place.generation != id.generation {
            return None;
        }
        place.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let place = self.places.get_mut(id.slot as usize)?;
        if place.generation != id.generation {
            return None;
        }
        place.value.as_mut()
    }

    /// Removes a value; its id is never valid again.
    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.places.get_mut(id.slot as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    /// The id of what is in a place now.
    pub(crate) fn occupant(&self, slot: u32) -> Option<Id> {
        let place = self.places.get(slot as usize)?;
        place.value.as_ref().map(|_| Id {
            slot,
            generation: place.generation,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
