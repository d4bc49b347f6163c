//! The invariants: whenever no machine can move, once quiet, and at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::client::{Client, Stage};
use super::log::{client_uuid, server_uuid};
use super::world::World;

/// The longest time of a frame once quiet, in addition to the delay of the streams: some turns of others.
const PROGRESS: Duration = Duration::from_millis(300);

impl World {
    /// Checks that no two leaders act at the same time.
    pub(super) fn check_leaders(&self) -> Result<(), String> {
        if !self.has_engine || self.is_blurred() {
            return Ok(());
        }
        let acts = self.servers.iter().flatten().filter(|server| {
            let view = server.machine.view();
            view.acts(server.clock(self.now)).is_some()
        });
        let acting: Vec<_> = acts.map(|server| server.start).collect();
        match acting.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("one leader: {acting:?} act at once")),
        }
    }

    /// Checks the state in which no machine can move.
    pub(super) fn check_books(&self) -> Result<(), String> {
        for server in self.servers.iter().flatten() {
            if let Some(fault) = server.runner.flow().fault() {
                return Err(format!("lines: {fault} at {:?}", server.start));
            }
        }
        if self.rounds.is_multiple_of(8) {
            self.clients.iter().try_for_each(Client::check_books)?;
        }
        if !self.is_quiet {
            return Ok(());
        }
        // The steps: to a server, to another server, and to a client.
        let most = PROGRESS + 4 * self.delay;
        // Both directions count. A client that is stuck does not answer, and a client that sends to it waits.
        let last = self.now - 2 * most;
        let stuck = 2 * usize::from(self.clients[0].is_stuck);
        for client in self.clients.iter().skip(stuck).filter(|_| !self.is_ending) {
            let late = client.waits_for(self.quiet_at, last).find(|whom| *whom >= stuck);
            if let Some(whom) = late {
                return Err(format!(
                    "requests: client {} waits for an answer of {whom}",
                    client.at
                ));
            }
        }
        let log = self.log.lock().unwrap();
        let late = log
            .probes
            .iter()
            .find(|(_, sent)| self.now.duration_since(**sent) > most);
        match late {
            Some(((from, to, number), _)) => Err(format!(
                "progress: {number} of {from} has not arrived at {to} within {most:?}"
            )),
            None => Ok(()),
        }
    }

    /// Checks a quiet world: all faults are over, and no session has changed for a while.
    pub(super) fn check_quiet(&mut self) -> Result<(), String> {
        let now = self.now;
        let mut own: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut tokens = Vec::new();
        for at in 0..self.servers.len() {
            let Some(server) = &mut self.servers[at] else {
                return Err(format!("server {at} is down"));
            };
            let (links, token) = server.links(now);
            tokens.push(token);
            let others = self.servers.len() - 1;
            if links != others {
                return Err(format!("directories: server {at} has {links} links of {others}"));
            }
        }
        let mut rows = Vec::new();
        for server in self.servers.iter_mut().flatten() {
            let directory = server.directory(now);
            let uuid = server_uuid(server.start.0);
            own.insert(
                uuid,
                directory.iter().copied().filter(|row| row.0 == uuid).collect(),
            );
            rows.push((server.start, directory));
        }
        let mut all: Vec<_> = own.values().flatten().copied().collect();
        all.sort_unstable();
        for (start, directory) in &rows {
            if *directory != all {
                return Err(format!(
                    "directories: {start:?} has {directory:?}, the sessions are {all:?}"
                ));
            }
        }
        for client in &self.clients {
            let uuid = client_uuid(client.at);
            let sessions = all.iter().filter(|(_, of, _)| *of == uuid).count();
            if sessions > 1 || sessions == 0 && client.is_open() && !client.is_stuck {
                return Err(format!("one session: client {} has {sessions}", client.at));
            }
            if !client.is_open() && !client.is_stuck {
                return Err(format!("one session: client {} has none", client.at));
            }
            client.check_renewed()?;
        }
        let log = self.log.lock().unwrap();
        for (start, directory) in &rows {
            let known = log.rows.get(start).cloned().unwrap_or_default();
            let known: Vec<_> = known
                .into_iter()
                .map(|((server, uuid), id)| (server, uuid, id))
                .collect();
            let own = server_uuid(start.0);
            let remote: Vec<_> = directory.iter().copied().filter(|row| row.0 != own).collect();
            if known != remote {
                return Err(format!(
                    "told once: the application of {start:?} knows {known:?}, its server {remote:?}"
                ));
            }
        }
        if !log.probes.is_empty() {
            return Err(format!("progress: {:?} have not arrived", log.probes));
        }
        drop(log);
        if self.has_engine {
            let acts =
                |server: &&super::server::Server| server.machine.view().acts(server.clock(now)).is_some();
            let acting = self.servers.iter().flatten().filter(acts).count();
            if acting != 1 || tokens.iter().any(|token| *token != tokens[0]) {
                return Err(format!(
                    "one leader: {acting} act, the servers have seen {tokens:?}"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn check_the_end(&mut self) -> Result<(), String> {
        for server in self.servers.iter().flatten() {
            if !server.runner.is_over() {
                return Err(format!("end: {:?} has connections", server.start));
            }
        }
        for client in &self.clients {
            if !matches!(client.stage, Stage::Over) {
                return Err(format!("closed: client {} has not ended", client.at));
            }
            client.check_books()?;
        }
        let settings = self.let_go();
        let used = settings.budget.used() + settings.received.used();
        match used {
            0 => Ok(()),
            _ => Err(format!("zero: {used} bytes of the budget are not given back")),
        }
    }
}
