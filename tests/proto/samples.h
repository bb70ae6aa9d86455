// Messages to try the codec with: random ones of every kind within the bounds, and stages of cut models.
#pragma once

#include <vector>

#include "base/rng.h"
#include "dag/lower.h"
#include "dag/split.h"
#include "proto/messages.h"
#include "tests/support/models.h"

namespace weft::test {

// The model differentiated, lowered and dealt to about `stage_count` stages at random places.
struct CutModel {
  dag::Graph whole;
  dag::Split split;
};
CutModel cut_model(const Model& model, const dag::BackendTraits& traits, uint32_t stage_count, Rng& rng);

// What stage `stage` runs, as a broker would send it.
proto::StageProgram stage_program(const dag::Split& split, uint32_t stage);

// A message of the alternative `kind` of proto::Message.
proto::Message random_message(size_t kind, Rng& rng);

}  // namespace weft::test
