// How each link of a plan writes its tensors, by the job's policy. Pure, after partition and placement: what
// crosses a border is known, and so is the link that carries it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "dag/tensor.h"
#include "plan/cluster.h"
#include "plan/pipeline.h"

namespace weft::plan {

enum class CompressionPolicy : uint8_t {
  None,
  // The gentlest codec of each link at which it takes no longer than the stage that computes longest, or than
  // the slowest link at its strongest: unbiased blocks, of 4 bits at least. What no link needs stays dense.
  // Where the noise that gathers on the way through all stages would hurt what is learned, links become
  // gentler, those first that have most time to spare.
  Auto,
  AdaTopK,  // TopK of a ratio that grows with a link's transfer time, up to `ratio` (FusionLLM)
  Uniform,  // every link alike
};
struct Compression {
  CompressionPolicy policy = CompressionPolicy::None;
  std::optional<compress::Codec> codec{};  // Uniform: nothing: TopK of `ratio`
  double ratio = 100;  // dense bytes / wire bytes: of all (Uniform), of the slowest (AdaTopK)
  compress::Values values = compress::Values::F16;  // of TopK
  uint32_t gentler = 0;  // Auto: the bound of noise is a quarter of itself, so many times over
  bool operator==(const Compression&) const = default;
};

// TopK of the highest density that takes at most 1 / ratio of the dense bytes, positions included; of that
// kind the sparsest where none does.
compress::Codec top_k_of(double ratio, compress::Values values, size_t count);

// What one stage sends another, of one phase.
struct LinkCodec {
  uint32_t from_stage = 0, to_stage = 0;
  bool backward = false;
  compress::Codec codec{};
};
// Of each link that does not stay dense; `devices` by stage.
std::vector<LinkCodec> choose_codecs(const Compression& compression, const Pipeline& pipeline,
                                     const ClusterView& cluster, std::span<const uint32_t> devices);
// The pipeline's messages as they then travel.
void apply_codecs(std::span<const LinkCodec> codecs, Pipeline& pipeline);

// Of a value that crosses. Small ones, and those of other types than float32, stay dense.
compress::Codec codec_of(std::span<const LinkCodec> codecs, uint32_t from_stage, uint32_t to_stage,
                         bool backward, const dag::TensorSpec& spec);
bool takes_codec(const dag::TensorSpec& spec);

// What a partition may count on before codecs are chosen: dense bytes / wire bytes.
double expected_ratio(const Compression& compression);

// "compressed as int8: 25.0 MiB to 6.35 MiB a microbatch on 4 links"; empty: nothing is.
std::string describe_codecs(std::span<const LinkCodec> codecs, const Pipeline& pipeline, bool evaluates);

}  // namespace weft::plan
