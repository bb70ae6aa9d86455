// Internal to dag/onnx: ONNX's protobuf classes under a name that does not clash with weft::onnx.
#pragma once

#include <onnx/onnx_pb.h>

namespace weft::onnx {
namespace pb = ::onnx;
}
