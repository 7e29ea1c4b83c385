//! The variables of an image as a stage changes them: each is found and set without a walk through all.

use std::collections::{BTreeMap, HashMap};

/// Variables in their order, as the configuration of an image has them: `NAME=VALUE`.
#[derive(Debug, Default)]
pub(super) struct StageVariables {
    settings: BTreeMap<usize, String>,
    /// Where those of each name are. Images may have several.
    places: HashMap<String, Vec<usize>>,
    next: usize,
}

impl StageVariables {
    pub fn new(settings: Vec<String>) -> Self {
        let mut environment = Self::default();
        settings.into_iter().for_each(|setting| environment.push(setting));
        environment
    }

    fn push(&mut self, setting: String) {
        let name = setting.split('=').next().unwrap_or_default();
        self.places.entry(name.to_owned()).or_default().push(self.next);
        self.settings.insert(self.next, setting);
        self.next += 1;
    }

    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The last value of this name.
    pub fn value(&self, name: &str) -> Option<&str> {
        let of = |place: &usize| Some(self.settings.get(place)?.split_once('=')?.1);
        self.places.get(name)?.iter().rev().find_map(of)
    }

    /// In the place of what had this name before, as the last of a name need not be the one that programs see.
    pub fn set(&mut self, name: &str, value: &str) {
        for place in self.places.remove(name).unwrap_or_default() {
            self.settings.remove(&place);
        }
        self.push(format!("{name}={value}"));
    }

    pub fn settings(&self) -> impl Iterator<Item = &String> {
        self.settings.values()
    }
}
