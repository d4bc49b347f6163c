//! The errors of the API.

use serde_json::json;
use ssntp_http::{Answer, Refused};

use crate::reconcile;

/// An error for programs: the reason, and the field that causes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    code: u16,
    why: String,
    at: Option<String>,
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let Refused { code, why } = refused;
        Self { code, why, at: None }
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        Self::json(problem.code, &json!({ "error": problem.why, "at": problem.at }))
    }
}

impl Problem {
    pub(super) fn at(code: u16, at: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            code,
            why: why.into(),
            at: Some(at.into()),
        }
    }

    pub(super) fn unknown(what: &str) -> Self {
        Refused::new(404, format!("there is no such {what}")).into()
    }

    pub(super) fn unavailable(why: String) -> Self {
        Refused::new(503, why).into()
    }
}

impl From<reconcile::Refused> for Problem {
    fn from(refused: reconcile::Refused) -> Self {
        let why = refused.to_string();
        match refused {
            reconcile::Refused::Invalid(mistake) => Self::at(400, mistake.at, mistake.why),
            reconcile::Refused::NotFound(_) => Refused::new(404, why).into(),
            reconcile::Refused::Conflict(_) => Refused::new(409, why).into(),
            reconcile::Refused::Busy | reconcile::Refused::Store(_) => Self::unavailable(why),
        }
    }
}
