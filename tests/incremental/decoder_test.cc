// Which port of a file is what: find_decoder on files of many kinds.
#include <gtest/gtest.h>

#include "dag/onnx/decoder.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

constexpr auto kI64 = pb::TensorProto::INT64;

// A dim: a number, or a symbol.
void add_input(ModelMaker& maker, const std::string& name, const std::vector<std::string>& dims,
               int32_t type) {
  maker.input(name, std::vector<int64_t>(dims.size(), 1), type);
  auto& shape = *maker.graph()
                     .mutable_input(maker.graph().input_size() - 1)
                     ->mutable_type()
                     ->mutable_tensor_type()
                     ->mutable_shape();
  for (size_t d = 0; d < dims.size(); ++d) {
    auto& dim = *shape.mutable_dim(static_cast<int>(d));
    if (std::isdigit(static_cast<unsigned char>(dims[d][0])))
      dim.set_dim_value(std::stoll(dims[d]));
    else
      dim.set_dim_param(dims[d]);
  }
}

struct Given {
  std::string name;
  std::vector<std::string> dims;
  int32_t type = kI64;
};
Result<DecoderPorts> found(const std::vector<Given>& inputs, std::optional<int64_t> length = 8,
                           const std::vector<std::string>& outputs = {"present.0.key", "logits", "hidden"}) {
  ModelMaker maker;
  for (const Given& input : inputs) add_input(maker, input.name, input.dims, input.type);
  for (const std::string& output : outputs) {
    maker.weight("of_" + output, {1});
    maker.node("Identity", {"of_" + output}, {output});
    maker.output(output);
  }
  WEFT_TRY(const OnnxModel model, read_bytes(maker.bytes()));
  return find_decoder(model, length);
}
const Given kTokens{"input_ids", {"batch_size", "sequence_length"}};

void expect_refused(const Result<DecoderPorts>& result, ErrorCode code, const std::string& words) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code);
  EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
}

TEST(FindDecoder, BindsWhatIsKnownByName) {
  const auto ports =
      found({{"attention_mask", {"batch_size", "past + sequence"}},
             kTokens,
             {"position_ids", {"batch_size", "sequence_length"}},
             {"token_type_ids", {"batch_size", "sequence_length"}},
             {"use_cache_branch", {"1"}, pb::TensorProto::BOOL},
             {"past_key_values.0.key", {"batch_size", "4", "past", "16"}, pb::TensorProto::FLOAT}});
  ASSERT_TRUE(ports) << ports.error().message;
  EXPECT_EQ(ports->tokens, "input_ids");
  EXPECT_EQ(ports->logits, "logits");
  EXPECT_EQ(ports->left_out, (std::vector<std::string>{"present.0.key", "hidden"}));
  EXPECT_TRUE(ports->has_past);
  EXPECT_EQ(ports->input_shapes.at("input_ids"), (dag::Shape{1, 8}));
  EXPECT_EQ(to_int64s(ports->bound_inputs.at("attention_mask")), std::vector<int64_t>(8, 1));
  EXPECT_EQ(to_int64s(ports->bound_inputs.at("position_ids")),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(to_int64s(ports->bound_inputs.at("token_type_ids")), std::vector<int64_t>(8, 0));
  EXPECT_EQ(ports->bound_inputs.at("use_cache_branch").shape(), dag::Shape{1});
  EXPECT_EQ(ports->bound_inputs.at("past_key_values.0.key").shape(), (dag::Shape{1, 4, 0, 16}));
}

TEST(FindDecoder, OldCachesHaveKeysAndValuesTogether) {
  const auto ports =
      found({kTokens, {"past_0", {"2", "batch_size", "4", "past_length", "16"}, pb::TensorProto::FLOAT}});
  ASSERT_TRUE(ports) << ports.error().message;
  EXPECT_EQ(ports->bound_inputs.at("past_0").shape(), (dag::Shape{2, 1, 4, 0, 16}));
}

TEST(FindDecoder, OneIntegerInputIsTheTokens) {
  const auto fixed = found({{"words", {"1", "32"}}}, std::nullopt, {"scores"});
  ASSERT_TRUE(fixed) << fixed.error().message;
  EXPECT_EQ(fixed->tokens, "words");
  EXPECT_EQ(fixed->logits, "scores");
  EXPECT_EQ(fixed->length, 32);
  EXPECT_FALSE(fixed->has_past);
  const auto flat = found({{"words", {"length"}}}, 16);
  ASSERT_TRUE(flat) << flat.error().message;
  EXPECT_EQ(flat->input_shapes.at("words"), dag::Shape{16});
}

TEST(FindDecoder, RefusesByName) {
  const auto is = ErrorCode::Unsupported;
  const int32_t floats = pb::TensorProto::FLOAT;
  expect_refused(found({{"pixels", {"1", "3", "8", "8"}, floats}}), is, "no integer input");
  expect_refused(found({{"a", {"1", "t"}}, {"b", {"1", "t"}}}), is, "none is input_ids");
  expect_refused(found({kTokens, {"encoder_hidden_states", {"1", "t", "8"}, floats}}), is,
                 "'encoder_hidden_states'");
  expect_refused(found({{"input_ids", {"4", "t"}}}), is, "a batch of 4");
  expect_refused(found({kTokens, {"past.0", {"batch_size", "4", "7", "16"}, floats}}), is, "fixed length");
  expect_refused(found({kTokens, {"past.0", {"batch_size", "heads", "n", "16"}, floats}}), is,
                 "several dims");
  expect_refused(found({kTokens, {"attention_mask", {"batch_size", "1", "t", "t"}}}), is,
                 "made inside the model");
  expect_refused(found({kTokens, {"attention_mask", {"batch_size", "9"}}}), is, "for 9 positions");
  expect_refused(found({kTokens}, 8, {"present.0.key"}), is, "no output holds logits");
}
TEST(FindDecoder, AsksForALength) {
  const auto is = ErrorCode::InvalidArgument;
  expect_refused(found({kTokens}, std::nullopt), is, "say the longest one");
  expect_refused(found({{"input_ids", {"1", "32"}}}, 8), is, "exported for 32 positions, not for 8");
  expect_refused(found({kTokens}, 0), is, "0 positions");
}
// Sizes that nobody has memory for.
TEST(FindDecoder, TakesNoMemoryForHostileSizes) {
  const int32_t floats = pb::TensorProto::FLOAT;
  expect_refused(found({kTokens, {"use_cache_branch", {"1"}}, {"position_ids", {"900000000", "t"}}}),
                 ErrorCode::Unsupported, "larger than 1 GiB");
  expect_refused(found({kTokens, {"past.0", {"9000000000", "9000000000", "9000000000", "t"}, floats}}),
                 ErrorCode::OutOfRange, "");
}

}  // namespace
}  // namespace weft::onnx::testing
