// A small model of floats alone, which can be spoilt.
#pragma once

#include "tests/pipeline/layers.h"
#include "tests/pipeline/one_run.h"

namespace weft::pipeline {

inline test::Model perceptron() { return test::layers(kMicrobatchSize, {12, 12, 12, 12, 12}, 0.3); }

}  // namespace weft::pipeline
