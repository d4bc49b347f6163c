//! Reading the history, with a connection that cannot write.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ToSql, params};
use uuid::Uuid;

use super::error::StoreError;
use super::schema;
use crate::clock::unix_ms;
use crate::model::{Figures, Row};

/// The maximum number of rows that one query returns.
pub(super) const MAX_ROWS: usize = 1000;
/// The time limit for waiting for the connection that writes.
const BUSY: Duration = Duration::from_secs(2);

/// A connection that reads the history. Each query returns what is committed at that moment.
#[derive(Debug)]
pub struct History {
    connection: Connection,
    file: PathBuf,
}

/// A query for rows of the history. All conditions that are set have to hold.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only rows with a higher number.
    pub after: Option<i64>,
    /// Only rows with a lower number.
    pub before: Option<i64>,
    /// Only rows about this workload.
    pub workload: Option<String>,
    /// Only rows about this instance.
    pub instance: Option<UuidPrefix>,
    /// Only rows about this node.
    pub node: Option<UuidPrefix>,
    /// Only rows of this kind.
    pub kind: Option<String>,
    /// Only rows about workloads and instances of this tenant.
    pub tenant: Option<String>,
    /// The maximum number of rows; values above 1,000 count as 1,000.
    pub limit: usize,
    /// True if the newest rows come first.
    pub newest_first: bool,
}

/// One UUID, or all that begin with the same digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UuidPrefix {
    lowest: Uuid,
    highest: Uuid,
}

#[cfg(test)]
impl UuidPrefix {
    /// True if a UUID is one of these.
    pub(crate) fn is_of(self, uuid: Uuid) -> bool {
        (self.lowest..=self.highest).contains(&uuid)
    }
}

impl From<Uuid> for UuidPrefix {
    fn from(uuid: Uuid) -> Self {
        let (lowest, highest) = (uuid, uuid);
        Self { lowest, highest }
    }
}

impl FromStr for UuidPrefix {
    type Err = uuid::Error;

    /// Reads a UUID or its first digits, with the hyphens between them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(whole) = text.parse::<Uuid>() {
            return Ok(whole.into());
        }
        let filled = |with: Uuid| {
            let with = with.to_string();
            let rest = with.get(text.len()..).filter(|_| !text.is_empty());
            Uuid::try_parse(&format!("{text}{}", rest.unwrap_or_default()))
        };
        let (lowest, highest) = (filled(Uuid::nil())?, filled(Uuid::max())?);
        Ok(Self { lowest, highest })
    }
}

impl History {
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(file, flags)
            .and_then(|connection| connection.busy_timeout(BUSY).map(|()| connection));
        Ok(Self {
            connection: opened.map_err(|e| StoreError::of(file, e))?,
            file: file.to_owned(),
        })
    }

    /// The rows that fulfil the conditions of the query.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rows(&self, query: &Query) -> Result<Vec<Row>, StoreError> {
        // An index has the rows of one UUID in their order, but not those of several.
        let [(is_instance, are_instances), (is_node, are_nodes)] =
            [query.instance, query.node].map(|asked| {
                asked.map_or((false, false), |UuidPrefix { lowest, highest }| {
                    (lowest == highest, lowest != highest)
                })
            });
        let [[instance, last_instance], [node, last_node]] = [query.instance, query.node].map(|asked| {
            let UuidPrefix { lowest, highest } = asked.unwrap_or_default();
            [lowest, highest].map(Uuid::into_bytes)
        });
        let conditions: [(&str, &dyn ToSql, bool); 11] = [
            ("id >", &query.after, query.after.is_some()),
            ("id <", &query.before, query.before.is_some()),
            ("workload =", &query.workload, query.workload.is_some()),
            ("instance =", &instance, is_instance),
            ("instance >=", &instance, are_instances),
            ("instance <=", &last_instance, are_instances),
            ("node =", &node, is_node),
            ("node >=", &node, are_nodes),
            ("node <=", &last_node, are_nodes),
            ("kind =", &query.kind, query.kind.is_some()),
            ("tenant =", &query.tenant, query.tenant.is_some()),
        ];
        let mut text = format!("SELECT {} FROM history WHERE 1", schema::COLUMNS);
        let mut values = Vec::new();
        // Values are bound as parameters, never written into the text.
        for (condition, value, _) in conditions.iter().filter(|(.., is_given)| *is_given) {
            values.push(*value);
            text.push_str(&format!(" AND {condition} ?{}", values.len()));
        }
        let order = if query.newest_first { "DESC" } else { "ASC" };
        text.push_str(&format!(
            " ORDER BY id {order} LIMIT {}",
            query.limit.min(MAX_ROWS)
        ));
        let rows = || {
            let mut statement = self.connection.prepare(&text)?;
            statement
                .query_map(values.as_slice(), schema::row)?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|e| StoreError::of(&self.file, e))
    }

    /// Figures of a node from `since` on, in milliseconds since 1970; the oldest first. If there are
    /// more than `most`, the newest of them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn figures(&self, node: Uuid, since: i64, most: usize) -> Result<Vec<Figures>, StoreError> {
        let found = || {
            let mut statement = self.connection.prepare(
                "SELECT at, mem_available, mem_total, disk_available, disk_total, load, instances
                 FROM figures WHERE node = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at DESC LIMIT ?4",
            )?;
            // A clock that was ahead for a while has left figures with times in the future.
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let values = params![node.as_bytes(), since, unix_ms(), most];
            let found = statement.query_map(values, |row| schema::figures(node, row))?;
            found.collect::<rusqlite::Result<Vec<_>>>()
        };
        let mut found = found().map_err(|e| StoreError::of(&self.file, e))?;
        found.reverse();
        Ok(found)
    }

    /// The highest number that a row ever had; 0 before the first row. The row may have been deleted.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_id(&self) -> Result<i64, StoreError> {
        schema::last_id(&self.connection).map_err(|e| StoreError::of(&self.file, e))
    }
}
