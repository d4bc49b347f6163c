//! The seed disk, which cloud-init's NoCloud source reads at the first boot.
//!
//! ```text
//!  sector 0   boot record   geometry, label CIDATA
//!         1   FAT           for each cluster the next cluster of its file, in twelve bits
//!         …   FAT           a copy
//!         …   root          label, USER-D~1 "user-data", META-D~1 "meta-data"
//!         …   clusters      user data, then meta data, byte for byte
//! ```
//!
//! The format is always FAT12, because every system reads it. The clusters grow with the files, so that
//! the longest payload fits. The same documents always result in the same bytes.

/// The label that cloud-init looks for.
const LABEL: &[u8; 11] = b"CIDATA     ";
const SECTOR: usize = 512;
// The attributes of directory entries.
const VOLUME_LABEL: u8 = 0x08;
const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0x0f;
/// The maximum number of clusters of a FAT12; a disk with more would be a FAT16.
const MAX_CLUSTERS: usize = 4084;
/// The fewest clusters of a seed disk, because some readers reject tiny disks.
const MIN_CLUSTERS: usize = 512;
const ROOT_ENTRIES: usize = 16;
/// The type of medium: a hard disk.
const MEDIA: u8 = 0xf8;
/// The date of all files: 1980-01-01, the earliest that the format has. It is fixed, so that the bytes
/// are always the same.
const DATE: [u8; 2] = [0x21, 0x00];
/// The entry of the last cluster of a file.
const LAST: u16 = 0xfff;

/// The image of a disk with these two files. `None` if they are too large, which cannot happen because of
/// the length limit of payloads.
pub(super) fn image(user_data: &[u8], meta_data: &[u8]) -> Option<Vec<u8>> {
    let files = [
        (*b"USER-D~1   ", "user-data", user_data),
        (*b"META-D~1   ", "meta-data", meta_data),
    ];
    // A cluster has 1 to 128 sectors, a power of two.
    let (per_cluster, used) = (0..=7).map(|shift| 1usize << shift).find_map(|sectors| {
        let used: usize = files
            .iter()
            .map(|(.., bytes)| bytes.len().div_ceil(sectors * SECTOR))
            .sum();
        (used <= MAX_CLUSTERS).then_some((sectors, used))
    })?;
    let clusters = used.max(MIN_CLUSTERS);
    let fat_sectors = ((clusters + 2) * 3).div_ceil(2).div_ceil(SECTOR);
    let root_at = (1 + 2 * fat_sectors) * SECTOR;
    let data_at = root_at + ROOT_ENTRIES * 32;
    let total = data_at / SECTOR + clusters * per_cluster;

    let mut fat = Fat::new(fat_sectors * SECTOR);
    let mut root = entry(LABEL, VOLUME_LABEL, 0, 0).to_vec();
    let mut data = Vec::new();
    // The format numbers clusters from 2.
    let mut next = 2u16;
    for (short, long, bytes) in files {
        let count = u16::try_from(bytes.len().div_ceil(per_cluster * SECTOR)).ok()?;
        // An empty file has no cluster.
        let first = if count == 0 { 0 } else { next };
        for cluster in next..next + count {
            let following = cluster + 1;
            fat.set(
                cluster,
                if following == next + count {
                    LAST
                } else {
                    following
                },
            );
        }
        next += count;
        root.extend(long_name(long, &short));
        root.extend(entry(&short, ARCHIVE, first, u32::try_from(bytes.len()).ok()?));
        data.extend_from_slice(bytes);
        data.resize(usize::from(next - 2) * per_cluster * SECTOR, 0);
    }

    let mut image = boot_record(per_cluster, fat_sectors, total)?;
    // The format keeps a copy of the table.
    image.extend_from_slice(&fat.0);
    image.extend_from_slice(&fat.0);
    image.extend(root);
    image.resize(data_at, 0);
    image.extend(data);
    image.resize(total * SECTOR, 0);
    Some(image)
}

fn boot_record(per_cluster: usize, fat_sectors: usize, total: usize) -> Option<Vec<u8>> {
    let mut record = vec![0xeb, 0x3c, 0x90]; // a jump over this record
    record.extend(b"SSNTP   ");
    record.extend(512u16.to_le_bytes());
    record.push(u8::try_from(per_cluster).ok()?);
    record.extend(1u16.to_le_bytes()); // the sectors before the first FAT: this one
    record.push(2); // the number of FATs
    record.extend(u16::try_from(ROOT_ENTRIES).ok()?.to_le_bytes());
    // The size in sectors: a small disk has it in this field, a larger one in a field below.
    let small = u16::try_from(total).unwrap_or(0);
    record.extend(small.to_le_bytes());
    record.push(MEDIA);
    record.extend(u16::try_from(fat_sectors).ok()?.to_le_bytes());
    record.extend(32u16.to_le_bytes()); // sectors per track
    record.extend(2u16.to_le_bytes()); // heads
    record.extend(0u32.to_le_bytes()); // hidden sectors
    let large = if small == 0 { u32::try_from(total).ok()? } else { 0 };
    record.extend(large.to_le_bytes());
    record.extend([0x80, 0, 0x29]); // a hard disk; 0x29: id, label and type follow
    record.extend(*b"SEED");
    record.extend(LABEL);
    record.extend(b"FAT12   ");
    record.resize(SECTOR - 2, 0);
    record.extend([0x55, 0xaa]); // the signature of a boot record
    Some(record)
}

/// An entry of the root directory.
fn entry(name: &[u8; 11], attributes: u8, cluster: u16, len: u32) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[..11].copy_from_slice(name);
    entry[11] = attributes;
    for date in [16, 18, 24] {
        entry[date..date + 2].copy_from_slice(&DATE);
    }
    entry[26..28].copy_from_slice(&cluster.to_le_bytes());
    entry[28..].copy_from_slice(&len.to_le_bytes());
    entry
}

/// The entry with the long name of a file, which precedes the entry of that file. Each of the two names
/// fits into one entry.
fn long_name(name: &str, short: &[u8; 11]) -> [u8; 32] {
    // The name ends with a zero, and 0xffff fills the rest.
    let mut units = name.encode_utf16().chain([0]).chain(std::iter::repeat(0xffff));
    let mut entry = [0; 32];
    entry[0] = 0x41; // number 1, and the last one
    entry[11] = LONG_NAME;
    // The checksum of the short name.
    entry[13] = short
        .iter()
        .fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    for at in (1..11).chain(14..26).chain(28..32).step_by(2) {
        let unit: u16 = units.next().unwrap_or(0xffff);
        entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
    }
    entry
}

/// The table of clusters: two entries of twelve bits in three bytes.
struct Fat(Vec<u8>);

impl Fat {
    fn new(len: usize) -> Self {
        let mut fat = Self(vec![0; len]);
        // Entry 0 has the type of medium, entry 1 an end mark.
        fat.set(0, 0xf00 | u16::from(MEDIA));
        fat.set(1, LAST);
        fat
    }

    fn set(&mut self, cluster: u16, value: u16) {
        let at = usize::from(cluster) * 3 / 2;
        let [low, high] = value.to_le_bytes();
        if cluster.is_multiple_of(2) {
            self.0[at] = low;
            self.0[at + 1] = (self.0[at + 1] & 0xf0) | (high & 0x0f);
        } else {
            self.0[at] = (self.0[at] & 0x0f) | (low << 4);
            self.0[at + 1] = (low >> 4) | (high << 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16_at(image: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes([image[at], image[at + 1]]))
    }

    /// Reads the image like a driver, which knows only its boot record.
    fn files(image: &[u8]) -> Vec<(String, Vec<u8>)> {
        let (sector, per_cluster) = (u16_at(image, 11), usize::from(image[13]));
        let (reserved, root_entries, fat_sectors) = (u16_at(image, 14), u16_at(image, 17), u16_at(image, 22));
        let root_at = (reserved + 2 * fat_sectors) * sector;
        let data_at = root_at + root_entries * 32;
        let total = match u16_at(image, 19) {
            0 => usize::try_from(u32::from_le_bytes(image[32..36].try_into().unwrap())).unwrap(),
            small => small,
        };
        assert_eq!(total * sector, image.len());
        assert!((total - data_at / sector) / per_cluster <= MAX_CLUSTERS, "FAT12");
        let fat = &image[reserved * sector..];
        assert_eq!(
            fat[..fat_sectors * sector],
            fat[fat_sectors * sector..2 * fat_sectors * sector]
        );
        let follows = |cluster: usize| {
            let pair = u16_at(fat, cluster * 3 / 2);
            if cluster.is_multiple_of(2) {
                pair & 0xfff
            } else {
                pair >> 4
            }
        };
        let (mut name, mut found) = (String::new(), Vec::new());
        for entry in image[root_at..data_at]
            .chunks(32)
            .take_while(|entry| entry[0] != 0)
        {
            match entry[11] {
                0x08 => assert_eq!(&entry[..11], LABEL),
                0x0f => {
                    let units: Vec<u16> = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30]
                        .map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]))
                        .into_iter()
                        .take_while(|unit| *unit != 0)
                        .collect();
                    name = String::from_utf16(&units).unwrap();
                }
                _ => {
                    let len = u32::from_le_bytes(entry[28..].try_into().unwrap()) as usize;
                    let (mut bytes, mut cluster) = (Vec::new(), u16_at(entry, 26));
                    while (2..0xff8).contains(&cluster) {
                        let at = data_at + (cluster - 2) * per_cluster * sector;
                        bytes.extend_from_slice(&image[at..at + per_cluster * sector]);
                        cluster = follows(cluster);
                    }
                    bytes.truncate(len);
                    assert_eq!(bytes.len(), len);
                    found.push((std::mem::take(&mut name), bytes));
                }
            }
        }
        found
    }

    #[test]
    fn both_files_are_read_back_at_every_size() {
        for (user, meta) in [
            (0, 1),
            (511, 512),
            (513, 0),
            (70_000, 3),
            (3_000_000, 5_000),
            (9_000_001, 40_000_000),
        ] {
            let user: Vec<u8> = (0..user).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let meta: Vec<u8> = (0..meta).map(|n| u8::try_from(n % 241).unwrap()).collect();
            let image = image(&user, &meta).unwrap();
            let expected = [("user-data".to_owned(), user), ("meta-data".to_owned(), meta)];
            assert!(files(&image) == expected);
        }
    }

    #[test]
    fn the_label_and_the_names_are_at_the_offsets_of_the_format() {
        let image = image(b"#cloud-config\n", b"{}").unwrap();
        assert_eq!(&image[43..54], LABEL);
        assert_eq!(&image[54..62], b"FAT12   ");
        assert_eq!(image[510..512], [0x55, 0xaa]);
        let long = long_name("user-data", b"USER-D~1   ");
        // The checksum of the short name, computed by another program.
        assert_eq!(long[13], 0xb0);
        assert_eq!(long[1..5], *b"u\0s\0");
        assert_eq!(long[22..26], [0, 0, 0xff, 0xff]);
    }
}
