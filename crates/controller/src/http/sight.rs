//! What a client may see. Routes and pages get all their data from here, and [`Sight`] answers every question of
//! [`Source`]. So no route can show a tenant's reader more than its tenant.

use std::sync::Arc;

use ssntp_admin::Sampled;
use ssntp_transport::{deadline, left};
use uuid::Uuid;

use super::access::Client;
use crate::daemon::{Outcome, Snapshot, UserRequest};
use crate::model::{Figures, Row, Version};
use crate::reconcile;
use crate::source::{Listed, Output, Picture, Rows, Source};
use crate::store::Query;
use ssntp::payload::SessionEntry;
use ssntp_http::Refused;
use ssntp_payload::{Start, TenantEntry};

/// The daemon as a client sees it: all of it, or what belongs to a tenant.
///
/// To a tenant belong the workloads whose spec names it, their versions and instances that do, and the rows
/// that were about these when they were written. Of the nodes of these instances it is shown whether they report.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    source: Arc<dyn Source>,
    pictures: Arc<Sampled<Picture>>,
    /// The tenant; `None` if the client may see everything.
    tenant: Option<String>,
}

/// The answer if the daemon cannot tell what was asked.
pub(super) fn unavailable(why: String) -> Refused {
    Refused::new(503, why)
}

impl Sight {
    /// All of the daemon, before it is known who asks.
    pub(super) fn whole(source: Arc<dyn Source>, pictures: Arc<Sampled<Picture>>) -> Self {
        Self {
            source,
            pictures,
            tenant: None,
        }
    }

    /// True if the database can be written.
    pub(super) fn stores(&self) -> bool {
        self.source.kept().health.store.is_none()
    }

    /// What this client may see of it.
    pub(super) fn of(&self, client: &Client) -> Self {
        Self {
            tenant: client.tenant.clone(),
            ..self.clone()
        }
    }

    /// The reason why a tenant's reader does not get what is the cluster's.
    fn refused(&self) -> Result<(), String> {
        let why = |tenant| format!("the token is limited to what tenant {tenant} has");
        self.tenant.as_ref().map_or(Ok(()), |tenant| Err(why(tenant)))
    }

    fn limited(&self, kept: Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(tenant) = &self.tenant else { return kept };
        let mut own = (*kept).clone();
        let is_its = |start: &Start| start.tenant_uuid == tenant.as_str();
        let state = &mut own.state;
        state.workloads.retain(|_, workload| is_its(&workload.spec.start));
        let workloads = &state.workloads;
        state.instances.retain(|_, instance| {
            let workload = workloads.get(&instance.workload);
            let version = workload.and_then(|workload| workload.version_of(instance.version));
            version.is_some_and(|version| is_its(&version.template.start))
        });
        for workload in state.workloads.values_mut() {
            let is_shown = |version: &Version| is_its(&version.template.start);
            if workload.versions.iter().all(is_shown) {
                continue;
            }
            // The reasons may be about an instance of a version that belonged to another tenant.
            let part = Arc::make_mut(workload);
            part.versions.retain(is_shown);
            part.rollout.why.clear();
            let status = own.status.get_mut(&part.name);
            status.into_iter().for_each(|status| status.problem = None);
        }
        own.status
            .retain(|name, _| own.state.workloads.contains_key(name));
        Arc::new(own)
    }
}

impl Source for Sight {
    fn picture(&self) -> Result<Picture, String> {
        let picture = (*self.pictures.sample()?).clone();
        if self.tenant.is_none() {
            return Ok(picture);
        }
        let kept = self.limited(picture.kept);
        let view = picture
            .view
            .of_instances(|instance| kept.state.instances.contains_key(&instance));
        Ok(Picture {
            kept,
            view: Arc::new(view),
            certificates: Vec::new(),
            ..picture
        })
    }

    fn kept(&self) -> Arc<Snapshot> {
        self.limited(self.source.kept())
    }

    fn sessions(&self) -> Listed<SessionEntry> {
        self.refused()?;
        self.source.sessions()
    }

    fn tenants(&self) -> Listed<TenantEntry> {
        let tenants = self.source.tenants()?;
        let Some(own) = &self.tenant else {
            return Ok(tenants);
        };
        Ok(Arc::new(
            tenants.iter().filter(|one| one.name == *own).cloned().collect(),
        ))
    }

    fn has_tenant(&self, name: &str) -> Result<bool, String> {
        match &self.tenant {
            Some(own) => Ok(own == name),
            None => self.source.has_tenant(name),
        }
    }

    fn rows(&self, query: &Query) -> Result<Vec<Row>, String> {
        let tenant = self.tenant.clone().or(query.tenant.clone());
        self.source.rows(&Query {
            tenant,
            ..query.clone()
        })
    }

    fn stored(&self) -> Result<Option<(i64, i64)>, String> {
        self.source.stored()
    }

    fn figures(&self, node: Uuid, since: i64) -> Result<Vec<Figures>, String> {
        self.refused()?;
        self.source.figures(node, since)
    }

    fn follow(&self, after: Option<i64>) -> Result<Rows, String> {
        let mut all = self.source.follow(after)?;
        let Some(tenant) = self.tenant.clone() else {
            return Ok(all);
        };
        Ok(Box::new(move |limit| {
            let end = deadline(limit);
            loop {
                let row = all(left(end).unwrap_or_default())?;
                let is_own = |row: &Row| row.tenant.as_ref() == Some(&tenant);
                if row.as_ref().is_none_or(is_own) || left(end).is_err() {
                    return Ok(row.filter(is_own));
                }
            }
        }))
    }

    fn output(&self, instance: Uuid, follow: bool) -> Result<Output, String> {
        if self.tenant.is_some() && !self.kept().state.instances.contains_key(&instance) {
            self.refused()?;
        }
        self.source.output(instance, follow)
    }

    fn request(&self, actor: &str, request: UserRequest) -> Outcome {
        // Also a dry run tells about workloads.
        self.refused().map_err(reconcile::Refused::Conflict)?;
        self.source.request(actor, request)
    }
}
