//! Lets a simulation do what other threads might, between two looks at a
//! ledger.

use std::cell::RefCell;

type Others = Box<dyn FnMut()>;

thread_local! {
    static OTHERS: RefCell<Option<Others>> = const { RefCell::new(None) };
}

/// Other threads do what they like.
pub fn interleave() {
    // Taken out, since what they do may come by here again.
    let others = OTHERS.with_borrow_mut(Option::take);
    if let Some(mut others) = others {
        others();
        OTHERS.with_borrow_mut(|place| *place = Some(others));
    }
}

/// What other threads do on this thread from now on.
pub fn set(others: Option<Others>) {
    OTHERS.with_borrow_mut(|place| *place = others);
}
