// The small parts of the program: amounts, devices, predictions put in order, exit codes.
#include <gtest/gtest.h>

#include "cli/device.h"
#include "cli/exit_codes.h"
#include "cli/fetched_record.h"
#include "cli/quantities.h"
#include "cli/results.h"

namespace weft::cli {
namespace {

TEST(Quantities, DurationsNeedAUnit) {
  EXPECT_EQ(parse_duration("90s").value(), std::chrono::seconds(90));
  EXPECT_EQ(parse_duration("1.5h").value(), std::chrono::minutes(90));
  EXPECT_EQ(parse_duration("30d").value(), std::chrono::hours(720));
  for (const char* text : {"", "90", "s", "-1s", "0s", "1w", "4000d", "1e3s", "nan", "inf s", "1s "})
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
}

TEST(Quantities, ARateCapIsARateOfSomeUse) {
  EXPECT_EQ(parse_rate_cap("--upload", "10Mbit").value(), 1.25e6);
  EXPECT_EQ(parse_rate_cap("--upload", "64kbit").value(), 8000);
  EXPECT_TRUE(parse_rate_cap("--upload", "1Tbit").has_value());
  for (const char* text : {"", "0", "0kbit", "-1Mbit", "63kbit", "10", "Mbit", "10 Mbyte", "nan"})
    EXPECT_EQ(parse_rate_cap("--upload", text).error().code, ErrorCode::InvalidArgument) << text;
}

TEST(Quantities, BytesOfSoManyHaveTheUnitOfTheWhole) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(int64_t{3} << 39), "1.5 TiB");
  EXPECT_EQ(format_bytes_of(41 << 20, 128 << 20), "41.0 of 128.0 MiB");
  EXPECT_EQ(format_bytes_of(1 << 19, 3 << 20), "0.5 of 3.0 MiB");
  EXPECT_EQ(format_bytes_of(0, 1000), "0 of 1000 B");
}

TEST(Quantities, TimesAreInUtc) { EXPECT_EQ(format_time(1795241377954), "2026-11-21 06:09:37 UTC"); }

TEST(Devices, AreProcessorsWithThreadsOrNull) {
  EXPECT_EQ(parse_device("cpu")->threads, 0);
  EXPECT_EQ(parse_device("cpu:3")->threads, 3);
  EXPECT_EQ(parse_device("null:rtx3080")->catalogue->name, "rtx3080");
  EXPECT_EQ(parse_device("null:rtx3080/8")->catalogue->name, "rtx3080");
  for (const char* text :
       {"", "cpu:", "cpu:0", "cpu:-1", "cpu:2x", "cpu:99999", "gpu", "cuda:", "cuda:x", "cuda:-1", "cudaa",
        "null", "null:rtx3080/", "null:rtx3080/0", "null:rtx3080/8x"}) {
    const auto device = parse_device(text);
    ASSERT_FALSE(device.has_value()) << text;
    EXPECT_EQ(device.error().code, ErrorCode::InvalidArgument) << text;
  }
  EXPECT_EQ(parse_device("null:nothing").error().code, ErrorCode::NotFound);
}

TEST(Devices, OfNullMayBeSlower) {
  const auto fast = describe(*parse_device("null:rtx3080"), {}),
             slow = describe(*parse_device("null:rtx3080/8"), {});
  ASSERT_TRUE(fast && slow);
  EXPECT_EQ(slow->rates.memory_bytes_per_second * 8, fast->rates.memory_bytes_per_second);
  EXPECT_EQ(slow->rates.matmul_flops_per_second * 8, fast->rates.matmul_flops_per_second);
  EXPECT_EQ(slow->rates.kernel_seconds, 8 * fast->rates.kernel_seconds);
  EXPECT_EQ(slow->memory, fast->memory);
}

TEST(Devices, SayWhichArithmeticTheirBackendsHave) {
  const auto report = describe(*parse_device("null:rtx3080"), {});
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(report->arithmetic, std::vector<dag::Arithmetic>{dag::Arithmetic::F32});
}

TEST(ExitCodes, AreTheDocumentedOnes) {
  EXPECT_EQ(exit_code(ErrorCode::InvalidArgument), 2);
  EXPECT_EQ(exit_code(ErrorCode::VersionMismatch), 2);
  EXPECT_EQ(exit_code(ErrorCode::NotFound), 3);
  EXPECT_EQ(exit_code(ErrorCode::PermissionDenied), 3);
  EXPECT_EQ(exit_code(ErrorCode::Unsupported), 4);
  EXPECT_EQ(exit_code(ErrorCode::Corrupted), 5);
  EXPECT_EQ(exit_code(ErrorCode::ResourceExhausted), 6);
  EXPECT_EQ(exit_code(ErrorCode::Unavailable), 1);
  EXPECT_EQ(exit_code(ErrorCode::Timeout), 1);
  EXPECT_EQ(exit_code(ErrorCode::DeviceLost), 8);
  EXPECT_EQ(exit_code(ErrorCode::Cancelled), 130);
  EXPECT_EQ(end_with(kExitStopped), 130);
  EXPECT_EQ(end_with(fail(ErrorCode::DeviceLost, "it fell off the bus")), 8);
}

Digest digest(uint8_t number) {
  Digest digest;
  digest.bytes[0] = number;
  return digest;
}
proto::TensorReference output(const std::string& name, dag::Shape shape, uint8_t number) {
  return {.key = {.name = name, .slot = dag::StateSlot::None},
          .spec = {dag::DType::F32, std::move(shape)},
          .sha256 = digest(number)};
}
// Two outputs of two stages over three microbatches of four, ten samples.
proto::JobResult predictions() {
  proto::JobResult result;
  result.sample_count = 10;
  for (const uint32_t microbatch : {2u, 0u, 1u}) {  // as they may come
    const auto m = static_cast<uint8_t>(microbatch);
    result.predictions.push_back(
        {.run = 1, .plan_version = 1, .microbatch = microbatch, .outputs = {output("b", {4}, m)}});
    result.predictions.push_back({.run = 1,
                                  .plan_version = 1,
                                  .microbatch = microbatch,
                                  .outputs = {output("a", {4, 3}, static_cast<uint8_t>(10 + m))}});
  }
  return result;
}

TEST(Predictions, AreInSampleOrderWithoutPadding) {
  const auto outputs = arrange_predictions(predictions(), {"b", "a"});
  ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
  ASSERT_EQ(outputs->size(), 2u);
  EXPECT_EQ((*outputs)[0].name, "b");
  EXPECT_EQ((*outputs)[0].spec.shape, (dag::Shape{10}));
  EXPECT_EQ((*outputs)[0].blobs, (std::vector{digest(0), digest(1), digest(2)}));
  EXPECT_EQ((*outputs)[1].spec.shape, (dag::Shape{10, 3}));
  EXPECT_EQ((*outputs)[1].microbatch_size, 48u);
}

TEST(Predictions, ThatAreNotWholeAreRefused) {
  EXPECT_EQ(arrange_predictions({}, {}).error().code, ErrorCode::Corrupted);
  auto missing = predictions();
  missing.predictions.erase(missing.predictions.begin() + 2);
  EXPECT_EQ(arrange_predictions(missing, {}).error().code, ErrorCode::Corrupted);
  auto changed = predictions();
  changed.predictions[0].outputs[0].spec.shape = {5};
  EXPECT_EQ(arrange_predictions(changed, {}).error().code, ErrorCode::Corrupted);
  auto few = predictions();
  few.sample_count = 13;
  EXPECT_EQ(arrange_predictions(few, {}).error().code, ErrorCode::Corrupted);
  auto scalar = predictions();
  for (auto& report : scalar.predictions) report.outputs[0].spec.shape = {};
  EXPECT_EQ(arrange_predictions(scalar, {}).error().code, ErrorCode::Unsupported);
}

TEST(FetchedRecord, IsOfThePlansUpToWhatWasLearntOrSaysWhyThereIsNone) {
  replicas::LocalSteps first{.terms = {.count = 2, .every = 5}, .steps = 40}, then = first;
  then.terms.count = 3;
  then.begun_after = 10;
  storage::OuterRecord heading;
  heading.seed = 7;
  const FetchedRecord fetched = fetched_record(heading, {{first}, {then}}, 25);
  ASSERT_TRUE(fetched.record.has_value());
  EXPECT_EQ(fetched.record->seed, 7u);
  ASSERT_EQ(fetched.record->rounds.size(), 2u);
  EXPECT_EQ(fetched.record->rounds[1].steps, (std::vector<uint64_t>{5, 5, 5}));
  EXPECT_EQ(fetched.why_none, "");

  const FetchedRecord nothing = fetched_record({}, {}, 25), old_job = fetched_record({}, {{first}}, 25),
                      no_plans = fetched_record(heading, {}, 25);
  EXPECT_FALSE(nothing.record || old_job.record || no_plans.record);
  EXPECT_EQ(nothing.why_none, "") << "no replicas of it make local steps";
  EXPECT_NE(old_job.why_none.find("earlier version"), std::string::npos) << old_job.why_none;
  EXPECT_NE(no_plans.why_none.find("broker"), std::string::npos) << no_plans.why_none;
}

}  // namespace
}  // namespace weft::cli
