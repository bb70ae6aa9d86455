// Which axis of a model's inputs and outputs counts the samples. Files do not say it; the symbol that the
// exporter gave that axis does, and so a recurrent state [2,batch,128] beside x [batch,16] is known to have
// its batch on axis 1.
#pragma once

#include <string>
#include <string_view>

#include "dag/onnx/model.h"

namespace weft::onnx {

// The batch's symbol: of the inputs' symbols with "batch" in their name the one that begins an input, or any;
// else the symbol that is the first input's first axis, or the next one's where that is a number. Empty:
// every input begins with a number, or nothing is known.
std::string batch_symbol(const OnnxModel& model);

// The axis of the port that has the symbol; 0 where none has.
size_t batch_axis(const OnnxModel::Port& port, std::string_view symbol);

}  // namespace weft::onnx
