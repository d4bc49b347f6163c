//! The daemon as the [`Source`] of pages and API: its database, its view of the cluster, and lists
//! that it queries from its scheduler.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ssntp_admin::Sampler;
use uuid::Uuid;

use crate::clock::{time, unix_ms};
use crate::daemon::{Handle, Outcome, Snapshot, UserRequest};
use crate::model::{Figures, Row};
use crate::source::{Listed, Output, Picture, Rows, Source, Written};
use crate::store::{Query, StoreError};
use ssntp::payload::{ListSessions, SessionEntry, Sessions};
use ssntp_payload::{Outputs, Tenant, TenantAction, TenantEntry, TenantRefusal, Tenants};
use ssntp_transport::{deadline, left};
use ssntp_view::{Controller, OutputStream, StreamEvent, StreamRequest, all_pages, incomplete};

/// The time limit for an answer of the scheduler.
const ANSWER: Duration = Duration::from_secs(5);
/// The highest age of a list of the scheduler, because a list of a thousand sessions takes sixteen
/// answers.
const LIST_AGE: Duration = Duration::from_secs(2);
/// The maximum number of figures of a chart: 12 hours at one a minute, five days at one in ten minutes.
const FIGURES: usize = 720;
/// The number of lines of earlier output with which an output begins.
const LINES: u32 = 200;
/// The text in place of output that was lost because the instance wrote faster than its node reads.
const GAP: &str = "\n\u{2026} some output is missing here \u{2026}\n";

#[derive(Debug)]
pub(super) struct Live {
    handle: Handle,
    sessions: Sampler<Vec<SessionEntry>>,
    tenants: Sampler<Vec<TenantEntry>>,
}

impl Live {
    pub(super) fn new(handle: Handle) -> io::Result<Self> {
        let (of_sessions, of_tenants) = (Arc::clone(handle.controller()), Arc::clone(handle.controller()));
        Ok(Self {
            handle,
            sessions: Sampler::start("http-sessions", LIST_AGE, move || sessions(&of_sessions))?,
            tenants: Sampler::start("http-tenants", LIST_AGE, move || tenants(&of_tenants))?,
        })
    }
}

impl Source for Live {
    fn picture(&self) -> Result<Picture, String> {
        let controller = self.handle.controller();
        let client = controller.client();
        let mut certificates = vec![("this controller", client.identity().info().not_after)];
        if let Some(server) = client.server() {
            certificates.push(("the scheduler", server.certificate.not_after));
        }
        Ok(Picture {
            taken: time(unix_ms()),
            kept: self.handle.snapshot(),
            view: Arc::new(controller.look(Clone::clone)),
            certificates,
            distinctions: OnceLock::new(),
        })
    }

    fn kept(&self) -> Arc<Snapshot> {
        self.handle.snapshot()
    }

    fn sessions(&self) -> Listed<SessionEntry> {
        self.sessions.sampled().sample()
    }

    fn tenants(&self) -> Listed<TenantEntry> {
        self.tenants.sampled().sample()
    }

    fn has_tenant(&self, name: &str) -> Result<bool, String> {
        let answer = ask_of_tenants(self.handle.controller(), TenantAction::Show, name)?;
        match answer.reason {
            TenantRefusal::NotRefused => Ok(true),
            TenantRefusal::NoTenant => Ok(false),
            _ => Err(answer.detail),
        }
    }

    fn rows(&self, query: &Query) -> Result<Vec<Row>, String> {
        let history = self.handle.reading().history().map_err(text_of)?;
        history.rows(query).map_err(text_of)
    }

    fn figures(&self, node: Uuid, since: i64) -> Result<Vec<Figures>, String> {
        let history = self.handle.reading().history().map_err(text_of)?;
        history.figures(node, since, FIGURES).map_err(text_of)
    }

    fn follow(&self, after: Option<i64>) -> Result<Rows, String> {
        let mut follow = self.handle.reading().follow(after).map_err(text_of)?;
        Ok(Box::new(move |limit| follow.next(limit).map_err(text_of)))
    }

    fn output(&self, instance: Uuid, follow: bool) -> Result<Output, String> {
        let request = StreamRequest {
            outputs: Outputs::BOTH,
            tail: Some(LINES),
            follow,
        };
        let stream = self.handle.controller().stream(instance, request);
        let mut stream = stream.map_err(|e| e.to_string())?;
        let mut held = Default::default();
        Ok(Box::new(move |limit| next(&mut stream, &mut held, limit)))
    }

    fn request(&self, actor: &str, request: UserRequest) -> Outcome {
        self.handle.request(actor, request)
    }
}

fn text_of(e: StoreError) -> String {
    e.to_string()
}

fn sessions(controller: &Controller) -> Result<Vec<SessionEntry>, String> {
    all_pages(|after| {
        let question = ListSessions {
            id: Uuid::new_v4().into(),
            roles: String::new(),
            after: *after,
        };
        let page = controller.ask(&question, |page: &Sessions| page.id == question.id, ANSWER);
        let page = page.map_err(|e| e.to_string())?;
        Ok((page.entries, page.next))
    })
}

/// All tenants, without the addresses of their instances.
fn tenants(controller: &Controller) -> Result<Vec<TenantEntry>, String> {
    all_pages(|after: &String| {
        let page = ask_of_tenants(controller, TenantAction::List, after)?;
        match page.reason {
            TenantRefusal::NotRefused => Ok((page.entries, page.next)),
            _ => Err(page.detail),
        }
    })
}

fn ask_of_tenants(controller: &Controller, action: TenantAction, name: &str) -> Result<Tenants, String> {
    let question = Tenant {
        id: Uuid::new_v4().into(),
        action,
        name: name.to_owned(),
        ..Tenant::default()
    };
    let answer = controller.ask(&question, |answer: &Tenants| answer.id == question.id, ANSWER);
    answer.map_err(|e| e.to_string())
}

/// The next piece of an instance's output, in whole characters. `held` has, for each of the two
/// outputs, the bytes of a character whose remaining bytes have not arrived.
fn next(stream: &mut OutputStream, held: &mut [Vec<u8>; 2], limit: Duration) -> Option<Written> {
    let end = deadline(limit);
    loop {
        match stream.recv_timeout(left(end).unwrap_or_default())? {
            StreamEvent::Data {
                output,
                missing,
                bytes,
            } => {
                stream.return_credit(&bytes);
                let gap = if missing { GAP } else { "" };
                let [out, err] = held;
                return Some(if output == Outputs::STDERR {
                    Written::Err(gap.to_owned() + &text(err, &bytes))
                } else {
                    Written::Out(gap.to_owned() + &text(out, &bytes))
                });
            }
            StreamEvent::Ended(how) => return Some(Written::End(how.err().map(|e| e.to_string()))),
            _ => {}
        }
    }
}

/// The text of some bytes. An incomplete character at the end stays in `held`.
fn text(held: &mut Vec<u8>, bytes: &[u8]) -> String {
    held.extend(bytes);
    let rest = held.split_off(held.len() - incomplete(held));
    String::from_utf8_lossy(&std::mem::replace(held, rest)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_that_arrives_in_two_pieces_is_joined() {
        let mut held = Vec::new();
        let pieces: [&[u8]; 5] = [b"a\xf0\x9f", b"\x92", b"\xa9!", b"\xff\xc3", b"x"];
        let texts = pieces.map(|piece| text(&mut held, piece));
        assert_eq!(texts, ["a", "", "\u{1f4a9}!", "\u{fffd}", "\u{fffd}x"]);
        assert!(held.is_empty());
    }
}
