// The parts of hostile_models(): what each file of them gives, and what they share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/onnx/hostile_models.h"

namespace weft::onnx::testing::hostile {

// The bytes of linear_model() after `change`.
std::string of(const std::function<void(ModelMaker&)>& change);

pb::TensorProto& first_weight(ModelMaker& maker);

// A field of protobuf's wire format, for what its classes would not write.
std::string varint(uint64_t value);
std::string field(int number, const std::string& bytes);

std::vector<HostileModel> wire_cases();      // bytes that are no model
std::vector<HostileModel> external_cases();  // files beside the model
std::vector<HostileModel> tensor_cases();
std::vector<HostileModel> graph_cases();      // names, cycles, operators that are none
std::vector<HostileModel> expansion_cases();  // small nodes that ask for much
std::vector<HostileModel> function_cases();   // small files that stand for much
std::vector<HostileModel> loop_cases();

}  // namespace weft::onnx::testing::hostile
