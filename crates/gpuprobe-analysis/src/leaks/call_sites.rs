//! Places: sites as people tell them apart. Ways that read the same are one place, however many addresses they have; and
//! of the functions on a way, the one that asked for memory is named first, not those that got it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::{Api, Frame, SiteId, catalogue};
use serde::Serialize;

/// Libraries whose functions carry out what others ask for.
const CUDA_LIBRARIES: [&str; 4] = ["libcuda.so", "libcudart", "libcudadebugger", "libnvidia-"];
/// What the runtime is made of where it is linked into the program.
const STATIC_RUNTIME: [&str; 3] = ["__cudart", "libcudart_static_", "cudart::"];
/// Templates that programs are made of: they allocate for whoever uses them.
const CARRIERS: [&str; 4] = ["std::", "__gnu_cxx::", "thrust::", "cub::"];

/// A place in a program: one way to an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Place {
    /// The functions on the way, the one to show first; empty where the way is not known.
    pub frames: Vec<Frame>,
}

impl Place {
    /// The place that a way leads to, innermost first.
    pub fn of(mut frames: Vec<Frame>) -> Self {
        let head = head(&frames);
        frames.drain(..head);
        Self { frames }
    }

    /// The function to show, with its line where that is known. Of the file its name is enough to be recognized by.
    pub fn name(&self) -> String {
        self.frames.first().map_or_else(|| UNKNOWN.to_owned(), short)
    }

    /// All of the way, the innermost function first.
    pub fn way(&self) -> Vec<String> {
        self.frames.iter().map(Frame::to_string).collect()
    }
}

/// A frame without the folders of its source file.
fn short(frame: &Frame) -> String {
    let name = |file: &String| file.rsplit('/').next().unwrap_or(file).to_owned();
    Frame { file: frame.file.as_ref().map(name), ..frame.clone() }.to_string()
}

/// The name of the place of everything whose way is not known.
pub const UNKNOWN: &str = "unknown";

/// Which frame to show: the first that is neither in a library of CUDA nor a carrier and whose function is known; or as
/// much of that as there is.
fn head(frames: &[Frame]) -> usize {
    let outside = |f: &Frame| !is_of_cuda(f);
    let is_telling = |f: &Frame| {
        let carries = |name: &String| CARRIERS.iter().any(|prefix| name.starts_with(prefix));
        outside(f) && f.function.as_ref().is_some_and(|name| !carries(name))
    };
    let found = |wanted: &dyn Fn(&Frame) -> bool| frames.iter().position(wanted);
    found(&is_telling).or_else(|| found(&outside)).unwrap_or(0)
}

fn is_of_cuda(frame: &Frame) -> bool {
    let in_library = |module: &String| CUDA_LIBRARIES.iter().any(|library| module.starts_with(library));
    let is_runtime = |name: &String| {
        STATIC_RUNTIME.iter().any(|prefix| name.starts_with(prefix))
            || [Api::Runtime, Api::Driver].iter().any(|api| catalogue().lookup(*api, None, name).is_some())
    };
    frame.module.as_ref().is_some_and(in_library) || frame.function.as_ref().is_some_and(is_runtime)
}

/// A number for a place, in the order in which they were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PlaceId(u64);

/// The places that sites belong to.
#[derive(Clone, Debug, Default)]
pub struct Places {
    of_site: HashMap<SiteId, PlaceId>,
    by_way: HashMap<Vec<String>, PlaceId>,
    places: HashMap<PlaceId, Arc<Place>>,
    found: u64,
}

impl Places {
    /// Whether the way to a site has been asked for.
    pub fn is_named(&self, site: SiteId) -> bool {
        self.of_site.contains_key(&site)
    }

    /// Takes in the way to a site, innermost first.
    pub fn name(&mut self, site: SiteId, frames: Vec<Frame>) {
        let place = Place::of(frames);
        let way = place.way();
        let id = *self.by_way.entry(way).or_insert_with(|| {
            self.found += 1;
            PlaceId(self.found)
        });
        self.places.entry(id).or_insert_with(|| Arc::new(place));
        self.of_site.insert(site, id);
    }

    /// The place of a site; `None` where nobody asked for its way yet.
    pub fn of(&self, site: SiteId) -> Option<PlaceId> {
        self.of_site.get(&site).copied()
    }

    /// A place.
    pub fn get(&self, id: PlaceId) -> Option<&Arc<Place>> {
        self.places.get(&id)
    }

    /// Forgets all but these sites, and the places that only others led to.
    pub fn keep(&mut self, sites: &HashSet<SiteId>) {
        self.of_site.retain(|site, _| sites.contains(site));
        let used: HashSet<PlaceId> = self.of_site.values().copied().collect();
        self.places.retain(|id, _| used.contains(id));
        self.by_way.retain(|_, id| used.contains(id));
    }
}

/// Names for places that are shown together, no two alike: where several have the same first function, as those have that
/// allocate through one, each is told with the next functions by which they differ.
pub fn distinct_names(places: &[Arc<Place>]) -> Vec<String> {
    let ways: Vec<Vec<String>> =
        places.iter().map(|place| place.frames.iter().map(short).collect()).collect();
    let mut names: Vec<String> = places.iter().map(|place| place.name()).collect();
    // places with the same name so far, which are the same in as many functions
    let mut alike = vec![(0, (0..places.len()).collect::<Vec<_>>())];
    while let Some((from, group)) = alike.pop() {
        let at = |place: usize, i: usize| ways[place].get(i);
        let longest = group.iter().map(|place| ways[*place].len()).max().unwrap_or_default();
        let differs = |i: &usize| group.iter().any(|place| at(*place, *i) != at(group[0], *i));
        let Some(i) = (from..longest).find(differs) else { continue };
        let mut parts: HashMap<Option<&String>, Vec<usize>> = HashMap::new();
        group.iter().for_each(|place| parts.entry(at(*place, i)).or_default().push(*place));
        for (caller, part) in parts {
            if let Some(caller) = caller.filter(|_| i > 0) {
                part.iter().for_each(|place| names[*place] += &format!(" < {caller}"));
            }
            alike.push((i + 1, part));
        }
    }
    number_alike(&mut names, places);
    names
}

/// Gives numbers to names that are alike, in the order of the ways to their places: who comes first in a list changes.
pub fn number_alike(names: &mut [String], places: &[Arc<Place>]) {
    let mut order: Vec<usize> = (0..names.len().min(places.len())).collect();
    order.sort_by_cached_key(|i| places[*i].way());
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let mut seen = HashSet::new();
    for i in order {
        if seen.insert(names[i].clone()) {
            continue;
        }
        let free = (2_u64..).map(|n| format!("{} #{n}", names[i])).find(|name| !taken.contains(name));
        if let Some(name) = free {
            taken.insert(name.clone());
            names[i] = name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str, line: u32) -> Frame {
        Frame {
            address: u64::from(line),
            function: (!function.is_empty()).then(|| function.to_owned()),
            offset: u64::from(line),
            module: Some(module.to_owned()),
            file: (line > 0).then(|| "/src/lib/app.cc".to_owned()),
            line: (line > 0).then_some(line),
            inlined: false,
        }
    }

    fn named(frames: &[Frame]) -> String {
        Place::of(frames.to_vec()).name()
    }

    #[test]
    fn who_asked_is_shown_and_not_who_got_it() {
        let cases: &[(&[Frame], &str)] = &[
            (&[frame("load", "app", 3), frame("main", "app", 9)], "load (app.cc:3)"),
            (&[frame("cudaMalloc", "libcudart.so.12", 0), frame("load", "app", 3)], "load (app.cc:3)"),
            (
                &[frame("", "libcudart.so.12", 0), frame("", "libcuda.so.1", 0), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("cudaMalloc", "app", 0), frame("__cudart1234", "app", 0), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("thrust::device_vector<int>::allocate()", "app", 7), frame("load", "app", 3)],
                "load (app.cc:3)",
            ),
            (
                &[frame("", "libcublas.so.12", 0), frame("cublasCreate_v2", "libcublas.so.12", 0)],
                "cublasCreate_v2+0x0 (libcublas.so.12)",
            ),
            (&[frame("", "libcuda.so.1", 0), frame("", "app", 0)], "app+0x0"),
            (&[frame("cuMemAlloc_v2", "libcuda.so.1", 0)], "cuMemAlloc_v2+0x0 (libcuda.so.1)"),
            (&[frame("std::allocate()", "app", 0)], "std::allocate()+0x0 (app)"),
            (&[], "unknown"),
        ];
        for (frames, name) in cases {
            assert_eq!(named(frames), *name);
        }
    }

    #[test]
    fn ways_that_read_the_same_are_one_place() {
        let mut places = Places::default();
        let way = |address| vec![Frame { address, ..frame("load", "app", 3) }, frame("main", "app", 9)];
        places.name(SiteId(1), way(0x10));
        places.name(SiteId(2), [vec![frame("", "libcuda.so.1", 0)], way(0x20)].concat());
        places.name(SiteId(3), vec![frame("load", "app", 3), frame("main", "app", 10)]);
        places.name(SiteId(4), vec![]);
        places.name(SiteId(5), vec![]);
        let of = |site| places.of(SiteId(site)).unwrap();
        assert_eq!((of(1), of(4)), (of(2), of(5)));
        assert_ne!(of(1), of(3));
        assert!(places.is_named(SiteId(5)) && !places.is_named(SiteId(6)));
        assert_eq!(
            places.get(of(2)).unwrap().way(),
            ["load (/src/lib/app.cc:3)", "main (/src/lib/app.cc:9)"]
        );

        places.keep(&HashSet::from([SiteId(2), SiteId(6)]));
        assert!(places.of(SiteId(1)).is_none() && places.places.len() == 1 && places.by_way.len() == 1);
        let kept = places.of(SiteId(2));
        places.name(SiteId(7), way(0x30));
        assert_eq!(places.of(SiteId(7)), kept);
    }

    #[test]
    fn places_of_one_function_are_told_by_their_callers() {
        let place = |frames: &[Frame]| Arc::new(Place::of(frames.to_vec()));
        let (get, main) = (frame("get", "app", 3), frame("main", "app", 9));
        let shown = distinct_names(&[
            place(&[get.clone(), frame("pool", "app", 4), frame("load", "app", 5), main.clone()]),
            place(&[get.clone(), frame("pool", "app", 4), frame("save", "app", 6), main.clone()]),
            place(&[main]),
        ]);
        assert_eq!(
            shown,
            ["get (app.cc:3) < load (app.cc:5)", "get (app.cc:3) < save (app.cc:6)", "main (app.cc:9)"]
        );
    }

    #[test]
    fn no_two_places_have_the_same_name() {
        let place = |names: &[&str]| {
            let frames = names.iter().enumerate().map(|(i, name)| frame(name, "app", i as u32 + 1));
            Arc::new(Place::of(frames.collect()))
        };
        let folder = |folder: &str| {
            let file = Some(format!("{folder}/app.cc"));
            Arc::new(Place::of(vec![Frame { file, ..frame("put", "app", 1) }]))
        };
        let places = [
            place(&["get", "mid", "one", "main"]),
            place(&["get", "mid", "two", "main"]),
            place(&["get", "alt", "three", "main"]),
            place(&["get", "mid", "two", "main", "start"]),
            folder("/b"),
            folder("/a"),
            folder("/c"),
        ];
        let expected = [
            "get (app.cc:1) < mid (app.cc:2) < one (app.cc:3)",
            "get (app.cc:1) < mid (app.cc:2) < two (app.cc:3)",
            "get (app.cc:1) < alt (app.cc:2)",
            "get (app.cc:1) < mid (app.cc:2) < two (app.cc:3) < start (app.cc:5)",
            "put (app.cc:1) #2",
            "put (app.cc:1)",
            "put (app.cc:1) #3",
        ];
        assert_eq!(distinct_names(&places), expected);
        // whatever the order they come in
        let (backwards, expected): (Vec<_>, Vec<_>) = places.into_iter().zip(expected).rev().unzip();
        assert_eq!(distinct_names(&backwards), expected);
    }

    #[test]
    fn names_that_look_like_those_of_others_are_numbered() {
        let bare = |function: &str| Frame {
            function: Some(function.to_owned()),
            module: Some("app".to_owned()),
            ..Frame::default()
        };
        let place = |names: &[&str]| Arc::new(Place::of(names.iter().map(|name| bare(name)).collect()));
        let places = [
            place(&["get", "one"]),
            place(&["get", "two"]),
            place(&["get+0x0 (app) < one"]),
            place(&["main"]),
        ];
        let names = distinct_names(&places);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), places.len(), "{names:?}");
        let mut names = ["a", "a", "a #2", "b"].map(str::to_owned);
        number_alike(&mut names, &places);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 4, "{names:?}");
        assert!(names.contains(&"a #3".to_owned()) && names.contains(&"b".to_owned()), "{names:?}");
    }
}
