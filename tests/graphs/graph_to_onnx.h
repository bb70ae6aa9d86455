// A graph written as an ONNX file, as far as ONNX has its ops, and read back through the one door.
#pragma once

#include "tests/support/models.h"

namespace weft::test {

// Writes what has an ONNX operator of the same meaning (opset 17), imports the file, and expects the same
// values of both by the reference's arithmetic.
void expect_same_after_onnx(const Model& model);

}  // namespace weft::test
