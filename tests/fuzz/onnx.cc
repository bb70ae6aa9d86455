#include "dag/onnx/model.h"

#include "dag/onnx/pack.h"
#include "dag/onnx/scan.h"
#include "tests/fuzz/import_limits.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void onnx(std::span<const std::byte> bytes) {
  const auto ranges = weft::onnx::tensor_ranges(bytes, small_limits());
  if (ranges) {
    uint64_t end = 0;
    for (const auto& range : *ranges) {
      WEFT_CHECK(range.offset >= end && range.size <= bytes.size() &&
                 range.offset <= bytes.size() - range.size);
      end = range.offset + range.size;
    }
  }
  const auto model = weft::onnx::read_model(bytes, small_limits());
  if (!model) {
    WEFT_CHECK(!model.error().message.empty());
    return;
  }
  (void)model->inputs();
  (void)model->outputs();
  (void)weft::onnx::shape_inputs(*model);
  import_within_limits(*model);
}

}  // namespace weft::fuzz
