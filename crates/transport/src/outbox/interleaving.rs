//! Lets a simulation run the actions of other threads between two accesses to a ledger.

use std::cell::RefCell;

type Others = Box<dyn FnMut()>;

thread_local! {
    static OTHERS: RefCell<Option<Others>> = const { RefCell::new(None) };
}

/// Runs the actions that were [`set`].
pub fn interleave() {
    // Taken out, because the actions may call this function, too.
    let others = OTHERS.with_borrow_mut(Option::take);
    if let Some(mut others) = others {
        others();
        OTHERS.with_borrow_mut(|place| *place = Some(others));
    }
}

/// Sets the actions of other threads, which run on this thread from now on.
pub fn set(others: Option<Others>) {
    OTHERS.with_borrow_mut(|place| *place = others);
}
