//! Reads limits and their use from Linux's `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

/// The directories that may hold the files of a controller: those of the process's control group and of
/// each group above it, because the limits of all of them apply. They are listed for version 2 alone, for
/// version 2 beside version 1 (`unified`), and for version 1 (a directory for each controller). Inside a
/// container the path of the group may be that of the host while its files are at the top, so the top is
/// always included. Some directories may not exist.
pub(crate) fn directories(root: &Path, controller: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut directories = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let tops = match controllers {
            "" => vec!["sys/fs/cgroup".to_owned(), "sys/fs/cgroup/unified".to_owned()],
            _ if controllers.split(',').any(|one| one == controller) => {
                vec![format!("sys/fs/cgroup/{controller}")]
            }
            _ => continue,
        };
        // The path begins with ".." if the group is outside of this namespace; then only the top can be
        // read.
        let path = path.trim_start_matches('/');
        let path = Path::new(if path.starts_with("..") { "" } else { path });
        for top in tops {
            directories.extend(path.ancestors().map(|group| root.join(&top).join(group)));
        }
    }
    directories
}

/// The number in a file. `None` if the file holds `max`, or does not exist.
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The first word after `NAME:` in a file of such lines.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next()?.split_whitespace().next()
}

/// As [`field`], for a number.
pub(crate) fn number_field(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.parse().ok()
}
