//! Health checks of instances: what START asks for, and what STATS tell.

use crate::workload::is_default;
use ssntp::names;
use ssntp::schema;

fn is_grace(seconds: &u32) -> bool {
    *seconds == HealthCheck::default().start_s
}

schema! {
    /// The health check of an instance, which its node makes: one of `tcp`, `http` and `command`.
    HealthCheck {
        /// The TCP port at which the instance has to accept a connection; default: 0, none. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        tcp: u16,
        /// The time between two checks, in seconds; default: 10. Until the first check passes, at most a
        /// second.
        interval_s: u32 = 10,
        /// The time limit of a check, in seconds; default: 3.
        timeout_s: u32 = 3,
        /// The number of failures in a row after which the instance is unhealthy; default: 3.
        failures: u32 = 3,
        /// The HTTP request that the instance has to answer; default: none. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        http: HttpCheck,
        /// A program and its arguments, which has to exit with 0. It runs as the instance's user, with its
        /// limits. Default: none. Left out then.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        command: Vec<String>,
        /// The time after the start of the instance in which failures do not count until a check has
        /// passed, in seconds; default: 60. Left out then.
        #[serde(skip_serializing_if = "is_grace")]
        start_s: u32 = 60,
    }

    /// An HTTP request of a health check.
    HttpCheck {
        /// The TCP port; default: 0, no request.
        port: u16,
        /// The path, with a query if there is one; default: `/`.
        path: String = "/".into(),
        /// The status that the answer has to have; default: 0, any from 200 to 399. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        status: u16,
    }
}

names! {
    /// The health of an instance in STATS. The default is `Unset`.
    HealthState {
        /// No check has passed, and the grace is not over.
        Starting = "starting";
        /// The last check has passed, or too few have failed since.
        Healthy = "healthy";
        /// Too many checks in a row have failed.
        Unhealthy = "unhealthy";
        /// Unknown: the instance has no check or does not run, or its node makes none.
        Unset = "";
    }
    default Unset
}
