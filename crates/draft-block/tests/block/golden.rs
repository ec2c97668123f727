//! The trained head against the implementation that trained it.

use foretoken_draft_block::{is_block_head, load};
use foretoken_model_base::{BlockDraft, LoadOptions, Weights};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

use super::common::{HEAD, difference, embeds, golden, host, read, repository, trained};

/// Largest difference over the largest value, float32 against float32 with the same stored weights.
const TOLERANCE: f32 = 1e-4;

#[test]
fn states_and_blocks_agree_with_the_reference() {
    let model = golden("llama");
    let head = trained(model.as_ref());
    let file = Weights::open(&repository(HEAD).join("expected.safetensors"), LoadOptions::cpu()).unwrap();
    let ids = file.at("tokens").ids().unwrap();
    let anchors = file.at("anchors").ids().unwrap();
    let want = |name: &str| file.at(name).tensor(file.shape(name).unwrap()).unwrap();

    let (_, taps) = read(model.as_ref(), head.as_ref(), &mut model.make_caches(), &ids);
    let taps = taps.try_index((.., ..32, ..)).unwrap();
    let off = difference(&host(&taps), &host(&want("taps")));
    println!("tapped states: {off:.1e}");
    assert!(off < TOLERANCE, "tapped states are off by {off}");

    for (row, &anchor) in anchors.iter().enumerate() {
        let at = anchor as usize;
        let mut own = head.make_caches();
        let before: Array = want("taps").try_index(..anchor as i32).unwrap().expand_dims(0).unwrap();
        head.append(&embeds(model.as_ref(), &ids[..at]), &before, 0, &mut own).unwrap();
        let states = head.draft_block(&embeds(model.as_ref(), &ids[at..=at]), at, &mut own).unwrap();
        let logits = head.unembed(&states, model.as_ref()).unwrap();
        let off = difference(&host(&logits), &host(&want("logits").try_index(row as i32).unwrap()));
        println!("block at {anchor}: {off:.1e}");
        assert!(off < TOLERANCE, "the block at {anchor} is off by {off}");
    }
}

#[test]
fn the_shipped_folder_loads_and_says_what_it_is() {
    let model = golden("llama");
    let folder = repository(HEAD);
    assert!(is_block_head(&folder));
    assert!(!is_block_head(&repository("golden/llama")) && !is_block_head(&repository("golden")));
    let facts = load(&folder, model.as_ref()).unwrap().facts().clone();
    assert_eq!((facts.name, facts.max_depth, facts.look_ahead), ("block", 4, 0));
    assert_eq!(facts.taps, [0, 2]);
}
