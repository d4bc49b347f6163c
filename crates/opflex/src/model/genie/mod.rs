//! The public model of agent-ovs in its own definition files, `*.mdl`, made into
//! a [model file](super::Schema).
//!
//! ```text
//! module[gbp]
//! {
//!     type[Policy; super=scalar/Enum8] { const[name=allow; value=0] }
//!     class[EpGroup; super=gbp/Group; concrete]           GbpEpGroup:
//!     {                                                     under: [PolicySpace]
//!         contained { parent[class=policy/Space] }          properties:
//!         member[policy; type=gbp/Policy]                     policy: {enum: [allow]}
//!         dependency[network] { to[class=gbp/Domain] }    GbpEpGroupToNetworkRSrc:
//!     }                                                     under: [GbpEpGroup]
//! }                                                         properties: {target: {reference: [GbpDomain]}}
//! ```
//!
//! A class is called by its module and its name, and has what the classes above
//! it have: members, places and relations. A relation is a class of its own,
//! which names the class that declares it. Only what is not abstract is in the
//! model file; where an abstract class is named, those below it stand there.
//!
//! | file | what |
//! |---|---|
//! | `syntax` | the text of such a file |
//! | `classes` | what the files say together |

mod classes;
mod syntax;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{FileError, Format};

/// A model that was read from definition files.
#[derive(Debug)]
pub struct Imported {
    file: ModelFile,
    /// What was left out or is taken as anything, since nothing tells what it
    /// is: each with its place.
    pub skipped: Vec<String>,
}

/// What a model file holds.
#[derive(Debug, Serialize)]
struct ModelFile {
    open: bool,
    classes: BTreeMap<String, ModelClass>,
}

#[derive(Debug, Default, Serialize)]
struct ModelClass {
    #[serde(skip_serializing_if = "Option::is_none")]
    under: Option<Vec<String>>,
    properties: BTreeMap<String, Value>,
}

impl Imported {
    /// Reads definition files, each a name and a text.
    ///
    /// # Errors
    /// A text that is none of a definition file, with its place.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, FileError> {
        let mut classes = classes::Classes::default();
        for (name, text) in files {
            classes.add(name, syntax::read(name, text)?);
        }
        let (classes, skipped) = classes.model();
        Ok(Self {
            file: ModelFile { open: false, classes },
            skipped,
        })
    }

    /// Takes classes that are not in the model as well.
    pub fn open(mut self) -> Self {
        self.file.open = true;
        self
    }

    /// How many classes it has.
    pub fn classes(&self) -> usize {
        self.file.classes.len()
    }

    /// How many properties these have.
    pub fn properties(&self) -> usize {
        self.file
            .classes
            .values()
            .map(|class| class.properties.len())
            .sum()
    }

    /// The text of the model file.
    ///
    /// # Errors
    /// None that is known of.
    pub fn text(&self, format: Format) -> Result<String, FileError> {
        format.write(&self.file)
    }
}
