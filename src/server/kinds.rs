//! A table with a cell for each kind of frame, and the counters of one kind.

use crate::proto::{FrameKind, FrameType};

/// The counters of one kind of frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindFigures {
    /// A kind of the protocol or of the application. [`Figures::unsupported`](super::Figures::unsupported) has frames of other kinds.
    pub kind: FrameKind,
    /// The name of the kind, as logs show it.
    pub name: String,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes of these, including headers.
    pub bytes_received: u64,
    /// Frames that were forwarded or sent by the server or the application, one for each receiver.
    /// Frames that are dropped or lost later are included.
    pub frames_sent: u64,
    /// Bytes of these, including headers.
    pub bytes_sent: u64,
}

/// A value for each kind of the protocol's types. The kind is the index, because a look-up in a map for
/// each run of frames would take half as long as all other work for a lone frame.
#[derive(Clone, Debug)]
pub(super) struct KindTable<T> {
    cells: Vec<Option<T>>,
}

/// The number of types: the highest known one is ERROR, 4.
const TYPES: usize = FrameType::ERROR.0 as usize + 1;
/// All operands, because those of applications are in the upper half.
const OPERANDS: usize = 256;

impl<T> Default for KindTable<T> {
    fn default() -> Self {
        Self {
            cells: std::iter::repeat_with(|| None).take(TYPES * OPERANDS).collect(),
        }
    }
}

impl<T> KindTable<T> {
    fn cell(kind: FrameKind) -> Option<usize> {
        let FrameType(t) = kind.frame_type;
        (usize::from(t) < TYPES).then(|| usize::from(t) * OPERANDS + usize::from(kind.operand))
    }

    pub(super) fn get(&self, kind: FrameKind) -> Option<&T> {
        self.cells.get(Self::cell(kind)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, kind: FrameKind) -> Option<&mut T> {
        self.cells.get_mut(Self::cell(kind)?)?.as_mut()
    }

    /// `None` if the kind has an unknown type.
    pub(super) fn get_or_default(&mut self, kind: FrameKind) -> Option<&mut T>
    where
        T: Default,
    {
        Some(self.cells.get_mut(Self::cell(kind)?)?.get_or_insert_default())
    }

    /// The kinds with a value, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FrameKind, &T)> {
        let types = (0..=u8::MAX).zip(self.cells.chunks(OPERANDS));
        types.flat_map(|(frame_type, cells)| {
            let cells = (0..=u8::MAX).zip(cells);
            cells.filter_map(move |(operand, cell)| {
                Some((FrameKind::new(FrameType(frame_type), operand), cell.as_ref()?))
            })
        })
    }

    pub(super) fn set(&mut self, kind: FrameKind, value: T) {
        if let Some(cell) = Self::cell(kind).and_then(|cell| self.cells.get_mut(cell)) {
            *cell = Some(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_cell_of_its_own_for_each_kind_of_a_known_type() {
        let mut table = KindTable::default();
        let kinds = (0..=u8::MAX).flat_map(|t| (0..=u8::MAX).map(move |o| FrameKind::new(FrameType(t), o)));
        for kind in kinds.clone().filter(|kind| kind.frame_type.is_known()) {
            assert!(table.get(kind).is_none());
            table.set(kind, kind);
        }
        for kind in kinds {
            let mut expected = kind.frame_type.is_known().then_some(kind);
            assert_eq!(table.get(kind).copied(), expected, "{kind}");
            assert_eq!(table.get_mut(kind), expected.as_mut(), "{kind}");
        }
    }
}
