//! The two kinds of objects that are resolved: policy and endpoints.

use std::ops::{Index, IndexMut};

use serde::Serialize;

use super::method::Method;

/// The tree that a method is about: policy or endpoints. Servers and elements have both trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Store {
    /// The objects of a policy repository.
    #[serde(rename = "policy")]
    Policy,
    /// The objects of an endpoint registry.
    #[serde(rename = "endpoint")]
    Endpoints,
}

impl Store {
    /// The method that resolves objects.
    pub const fn resolve(self) -> Method {
        self.pick(Method::PolicyResolve, Method::EndpointResolve)
    }

    /// The method that ends a resolve.
    pub const fn unresolve(self) -> Method {
        self.pick(Method::PolicyUnresolve, Method::EndpointUnresolve)
    }

    /// The method that sends changes.
    pub const fn update(self) -> Method {
        self.pick(Method::PolicyUpdate, Method::EndpointUpdate)
    }

    /// The name in the result of a resolve, and in other JSON.
    pub const fn name(self) -> &'static str {
        self.pick("policy", "endpoint")
    }

    pub(super) const fn pick<T: Copy>(self, policy: T, endpoints: T) -> T {
        match self {
            Self::Policy => policy,
            Self::Endpoints => endpoints,
        }
    }
}

/// One value for policy, and one for endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerStore<T>(pub(crate) [T; 2]);

impl<T> Index<Store> for PerStore<T> {
    type Output = T;
    fn index(&self, of: Store) -> &T {
        &self.0[of as usize]
    }
}

impl<T> IndexMut<Store> for PerStore<T> {
    fn index_mut(&mut self, of: Store) -> &mut T {
        &mut self.0[of as usize]
    }
}
