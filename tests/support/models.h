// Small models built by hand: a residual convolutional net with BatchNorm, and a transformer with tied
// embedding and head. With seeded weights and inputs, and a loss attached.
#pragma once

#include <map>
#include <string>

#include "dag/graph.h"
#include "dag/loss.h"

namespace weft::test {

struct Model {
  dag::Graph graph;  // forward, with outputs of role Loss and StateUpdate; not differentiated
  dag::Weights weights;
  std::map<std::string, dag::Tensor> inputs;
};

struct ResidualNetOptions {
  int64_t batch = 4;
  int64_t channels = 8;
  int64_t size = 8;  // height and width of the images
  int64_t blocks = 2;
  int64_t classes = 10;
};
Model residual_net(uint64_t seed, const ResidualNetOptions& options = {});

struct TransformerOptions {
  int64_t batch = 2;
  int64_t sequence = 8;
  int64_t width = 16;
  int64_t heads = 2;
  int64_t layers = 2;
  int64_t vocabulary = 32;
  double dropout = 0.1;
};
Model transformer(uint64_t seed, const TransformerOptions& options = {});

// The same with each parameter rounded to bf16 before it is read, as in a file in half precision.
Model with_rounded_parameters(const Model& model);

// Normal draws times `deviation`.
dag::Tensor random_tensor(uint64_t seed, uint64_t stream, dag::Shape shape, double deviation = 1.0);
dag::Tensor random_labels(uint64_t seed, uint64_t stream, dag::Shape shape, int64_t classes);

}  // namespace weft::test
