// Which codecs the gradients of single steps may go through, and which tensors then do.
#include "replicas/gradient_codec.h"

#include <gtest/gtest.h>

namespace weft::replicas {
namespace {

compress::Codec of(const char* name) { return compress::parse(name).value(); }

TEST(GradientCodec, LeavesNothingOutAndRoundsByChance) {
  for (const char* name : {"dense", "int8", "int6", "int5", "int4", "int3", "int4z"})
    EXPECT_TRUE(check_gradient_codec(of(name)).has_value()) << name;
  const std::pair<const char*, const char*> refused[] = {
      {"topk:0.02:int4", "topk:0.02:int4 leaves out most of a gradient, which would be lost"},
      {"randomk:0.1:fp32", "leaves out most of a gradient"},
      {"topk:0.01:int8+int4", "is for local steps"},
      {"fp16", "fp16 rounds equal numbers always the same way"},
      {"bf16", "; for each step's gradients there are dense, int8,"}};
  for (const auto& [name, why] : refused) {
    const Status status = check_gradient_codec(of(name));
    ASSERT_FALSE(status.has_value()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(status.error().message.find(why), std::string::npos) << status.error().message;
  }
}

TEST(GradientCodec, IsForTensorsThatItMakesShorter) {
  EXPECT_EQ(gradient_codec(of("int8"), 1000), of("int8"));
  EXPECT_EQ(gradient_codec(of("dense"), 1000), compress::Codec{});
  EXPECT_EQ(gradient_codec(of("int8"), compress::kMaxCount + 1), compress::Codec{});
  for (size_t count = 0; count < 40; ++count) {
    const compress::Codec codec = gradient_codec(of("int8"), count);
    const bool is_shorter = compress::wire_bytes(of("int8"), count) < 4 * count;
    EXPECT_EQ(codec, is_shorter ? of("int8") : compress::Codec{}) << count;
  }
  EXPECT_EQ(gradient_codec(of("int8"), 2), compress::Codec{}) << "two numbers, and a scale";
}

}  // namespace
}  // namespace weft::replicas
