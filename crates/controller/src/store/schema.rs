//! The tables, and how each kind of row is written and read.
//!
//! Workloads and instances are stored as JSON documents: all of them are read at the start, and no
//! query selects by a field. So a new field needs no new schema.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{Connection, OpenFlags, Row as Found, ToSql, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::error::{Fault, StoreError};
use super::shared::{Limits, size};
use crate::model::{Event, Figures, Row, State, Workload, Write};

/// The version of the schema, which the database holds as `user_version`. Those before were in no release.
const VERSION: i64 = 5;
/// The statements that make the tables of a new database. The pages of traces and of one kind of events ask for rare
/// kinds again and again, so kinds have an index as well.
const SCHEMA: &str = "CREATE TABLE workloads (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE instances (uuid BLOB PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, kind TEXT NOT NULL,
        workload TEXT, instance BLOB, node BLOB, text TEXT NOT NULL, actor TEXT, tenant TEXT);
    CREATE INDEX history_workload ON history (workload, id) WHERE workload IS NOT NULL;
    CREATE INDEX history_instance ON history (instance, id) WHERE instance IS NOT NULL;
    CREATE INDEX history_node ON history (node, id) WHERE node IS NOT NULL;
    CREATE INDEX history_kind ON history (kind, id);
    CREATE INDEX history_tenant ON history (tenant, id) WHERE tenant IS NOT NULL;
    CREATE TABLE figures (node BLOB NOT NULL, at INTEGER NOT NULL, mem_available INTEGER NOT NULL,
        mem_total INTEGER NOT NULL, disk_available INTEGER NOT NULL, disk_total INTEGER NOT NULL,
        load INTEGER NOT NULL, instances INTEGER NOT NULL, PRIMARY KEY (node, at)) WITHOUT ROWID;";
/// The time limit for waiting for another connection. Only a checkpoint makes one wait.
const BUSY: Duration = Duration::from_secs(5);
/// The longest text of a row, in bytes.
pub(crate) const MAX_TEXT: usize = 4096;

/// Opens the database, checks it, and creates the tables of a new one.
pub(super) fn open(file: &Path, limits: Limits) -> Result<Connection, StoreError> {
    let is_new = size(file) == 0;
    let failed = |e| StoreError::of(file, e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(failed)?;
    if found > VERSION {
        let (file, known) = (file.to_owned(), VERSION);
        return Err(StoreError::Newer { file, found, known });
    }
    if !is_new {
        // Finds a damaged database at the start, before a row turns out to be missing.
        let verdict = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        let verdict = verdict.map_err(failed)?;
        if verdict != "ok" {
            return Err(StoreError::failed(file, Fault::Damaged, verdict));
        }
        let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| {
            row.get::<_, i64>(0)
        });
        // A file that this program created just before a crash has no tables, and is used.
        if found != VERSION && (found != 0 || tables.map_err(failed)? > 0) {
            let why = format!(
                "it has the schema {found} of another program, or of a version that was not released"
            );
            return Err(StoreError::failed(file, Fault::Foreign, why));
        }
    }
    configure(&connection, limits).map_err(failed)?;
    if found == 0 {
        create(&mut connection).map_err(failed)?;
    }
    Ok(connection)
}

fn configure(connection: &Connection, limits: Limits) -> rusqlite::Result<()> {
    let bytes = i64::try_from(limits.bytes).unwrap_or(i64::MAX);
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    // FULL syncs the journal at each commit. With NORMAL, a loss of power could undo a commit after
    // its START was sent.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update_and_check(None, "journal_size_limit", bytes / 4, |_| Ok(()))?;
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let most = bytes.saturating_mul(2) / page.max(1);
    connection.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()))
}

fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Reads the workloads and the instances.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<State> {
    let mut state = State::default();
    let workloads = documents(connection, "SELECT document FROM workloads", |workload| {
        Write::Workload(Box::new(Workload::complete(workload)))
    })?;
    let instances = documents(connection, "SELECT document FROM instances", Write::Instance)?;
    let all = workloads.into_iter().chain(instances);
    all.for_each(|write| state.take(write));
    Ok(state)
}

fn documents<T: DeserializeOwned>(
    connection: &Connection,
    query: &str,
    write: fn(T) -> Write,
) -> rusqlite::Result<Vec<Write>> {
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([], |row| {
        let text: String = row.get(0)?;
        let document = serde_json::from_str(&text);
        let damaged =
            |e: serde_json::Error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, e.into());
        document.map(write).map_err(damaged)
    })?;
    rows.collect()
}

/// Writes changes inside a transaction. The revision of each document becomes the number of the
/// last row of the history, which is returned.
pub(super) fn write(connection: &Connection, writes: &[Write], at: i64) -> rusqlite::Result<i64> {
    // The events come first, because the documents need the number of the last row.
    for write in writes {
        if let Write::Event(event) = write {
            insert(connection, event, at)?;
        }
    }
    let revision = last_id(connection)?;
    for write in writes {
        match write {
            Write::Workload(workload) => {
                let mut workload = workload.clone();
                workload.revision = revision;
                put(connection, "workloads", &workload.name, &workload)?;
            }
            Write::Instance(instance) => {
                let mut instance = instance.clone();
                instance.revision = revision;
                put(connection, "instances", instance.uuid.as_bytes(), &instance)?;
            }
            Write::WorkloadGone(name) => {
                run(connection, "DELETE FROM workloads WHERE name = ?1", params![name])?;
            }
            Write::InstanceGone(uuid) => {
                let statement = "DELETE FROM instances WHERE uuid = ?1";
                run(connection, statement, params![uuid.as_bytes()])?;
            }
            Write::Figures(figures) => put_figures(connection, figures)?,
            Write::Event(_) => {}
        }
    }
    Ok(revision)
}

fn put(
    connection: &Connection,
    table: &str,
    key: &dyn ToSql,
    document: &impl Serialize,
) -> rusqlite::Result<()> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
    let statement = format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2)");
    run(connection, &statement, params![key, text])
}

fn run(connection: &Connection, statement: &str, values: &[&dyn ToSql]) -> rusqlite::Result<()> {
    connection.prepare(statement)?.execute(values).map(drop)
}

fn insert(connection: &Connection, event: &Event, at: i64) -> rusqlite::Result<()> {
    // Peers and users choose the length of what they send, and the text may contain it.
    let most = event.text.len().min(MAX_TEXT);
    let end = (0..=most).rfind(|end| event.text.is_char_boundary(*end));
    let text = event.text.get(..end.unwrap_or(0)).unwrap_or_default();
    let bytes = |uuid: Option<Uuid>| uuid.map(Uuid::into_bytes);
    let (instance, node) = (bytes(event.instance), bytes(event.node));
    run(
        connection,
        "INSERT INTO history (at, kind, workload, instance, node, text, actor, tenant)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            at,
            event.kind,
            event.workload,
            instance,
            node,
            text,
            event.actor,
            event.tenant
        ],
    )
}

/// The columns that [`row`] reads.
pub(super) const COLUMNS: &str = "id, at, kind, workload, instance, node, text, actor, tenant";

pub(super) fn row(found: &Found<'_>) -> rusqlite::Result<Row> {
    let uuid = |at| Ok::<_, rusqlite::Error>(found.get::<_, Option<[u8; 16]>>(at)?.map(Uuid::from_bytes));
    Ok(Row {
        id: found.get(0)?,
        at: found.get(1)?,
        kind: found.get(2)?,
        workload: found.get(3)?,
        instance: uuid(4)?,
        node: uuid(5)?,
        text: found.get(6)?,
        actor: found.get(7)?,
        tenant: found.get(8)?,
    })
}

/// The highest number that a row of the history ever had. The row may have been deleted since.
pub(super) fn last_id(connection: &Connection) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare("SELECT max(seq) FROM sqlite_sequence WHERE name = 'history'")?;
    Ok(statement
        .query_row([], |row| row.get::<_, Option<i64>>(0))?
        .unwrap_or(0))
}

fn put_figures(connection: &Connection, figures: &Figures) -> rusqlite::Result<()> {
    let f = figures;
    #[rustfmt::skip] // In the order of the columns.
    let values = params![
        f.node.as_bytes(), f.at, f.mem_available_mb, f.mem_total_mb, f.disk_available_mb, f.disk_total_mb,
        f.load, f.instances,
    ];
    let statement = "INSERT OR REPLACE INTO figures VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    run(connection, statement, values)
}

pub(super) fn figures(node: Uuid, found: &Found<'_>) -> rusqlite::Result<Figures> {
    Ok(Figures {
        node,
        at: found.get(0)?,
        mem_available_mb: found.get(1)?,
        mem_total_mb: found.get(2)?,
        disk_available_mb: found.get(3)?,
        disk_total_mb: found.get(4)?,
        load: found.get(5)?,
        instances: found.get(6)?,
    })
}
