// The pages of docs/book as modules of the documentation. A link of a page is a reference; the
// definitions in book.links come before those at the end of the page, so they count here.
#![doc = include_str!("book.links")]
#![doc = include_str!("../docs/book/README.md")]

macro_rules! pages {
    ($($name:ident = $page:literal,)*) => {$(
        #[doc = include_str!("book.links")]
        #[doc = include_str!($page)]
        pub mod $name {}
    )*};
}

pages! {
    client = "../docs/book/client.md",
    server = "../docs/book/server.md",
    own_frames = "../docs/book/own-frames.md",
    testing = "../docs/book/testing.md",
    errors = "../docs/book/errors.md",
    limits = "../docs/book/limits.md",
    systemd = "../docs/book/systemd.md",
    security = "../docs/book/security.md",
    size = "../docs/book/size.md",
}
