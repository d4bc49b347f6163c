//! Takes the place of `admin` in a program that is built without pages. It has no flags, and its
//! functions do nothing.

use std::sync::Arc;

use ssntp::pki::{Identity, Trust};
use ssntp::transport::Address;
use ssntp_agent::Agent;

use crate::credentials::Lifetime;
use crate::failure::Failure;
use crate::settings::Problems;
use crate::watched::Watched;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {}

#[derive(Debug)]
pub(crate) struct Figures;

#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {}

#[derive(Debug, Default)]
pub(crate) struct Pages {}

pub(crate) fn of_agent(_: &Arc<Agent>) -> Figures {
    Figures
}

impl AdminArgs {
    pub(crate) fn problems(&self, _: &mut Problems) {}
    pub(crate) fn start(
        &self,
        _: &'static str,
        _: &[Address],
        _: Notes,
        _: Option<(Identity, Trust)>,
        _: Figures,
    ) -> Result<Pages, Failure> {
        Ok(Pages {})
    }
}

impl Notes {
    pub(crate) fn reloaded(&self, _: Option<String>) {}
    pub(crate) fn lifetimes(&self, _: Vec<Lifetime>) {}
}

impl Pages {
    pub(crate) fn watched(&self) -> Watched {
        Watched::default()
    }
    pub(crate) fn announce(&self, _: bool) {}
    pub(crate) fn renew(&self, _: &Identity, _: &Trust) {}
    pub(crate) fn stopping(&self) {}
}
