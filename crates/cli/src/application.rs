//! `--application`: frames that an application defines, which a server forwards and clients may use.

use std::str::FromStr;

use ssntp::proto::{FrameKind, FrameType, Operands};
use ssntp_daemon::Failure;

/// The values of `--application`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Applications {
    /// Allow a kind of frame that an application defines, for example
    /// EVENT/0x80=Scaled; without TYPE it is a COMMAND; a name that ends with :request
    /// makes it a request, which its receiver answers; may be given several times
    #[arg(long = "application", value_name = "[TYPE/]0xNN=NAME[:request]")]
    applications: Vec<Defined>,
}

#[derive(Clone, Debug)]
struct Defined {
    kind: FrameKind,
    name: String,
    is_request: bool,
}

impl FromStr for Defined {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text
            .split_once('=')
            .ok_or("expected [TYPE/]0xNN=NAME[:request]")?;
        let (frame_type, operand) = match kind.split_once('/') {
            Some((frame_type, operand)) => (frame_type.parse().map_err(|e| format!("{e}"))?, operand),
            None => (FrameType::COMMAND, kind),
        };
        let operand = operand
            .strip_prefix("0x")
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .map(|digits| u8::from_str_radix(digits, 16));
        let Some(Ok(operand)) = operand else {
            return Err("the operand must be a hexadecimal number from 0x80 to 0xfe".into());
        };
        let (name, is_request) = match name.strip_suffix(":request") {
            Some(name) => (name, true),
            None => (name, false),
        };
        Ok(Self {
            kind: FrameKind::new(frame_type, operand),
            name: name.into(),
            is_request,
        })
    }
}

impl Applications {
    /// The operands for the configuration of a server or a client.
    pub(crate) fn operands(&self) -> Result<Operands, Failure> {
        let mut operands = Operands::new();
        for Defined {
            kind,
            name,
            is_request,
        } in &self.applications
        {
            let added = if *is_request {
                operands.request(*kind, name)
            } else {
                operands.application(*kind, name)
            };
            operands = added.map_err(|e| Failure::usage(format!("--application: {e}")))?;
        }
        Ok(operands)
    }
}
