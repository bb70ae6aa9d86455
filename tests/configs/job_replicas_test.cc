// What a job says of replicas, and what it leaves open.
#include "tests/configs/small_job.h"

namespace weft::configs {
namespace {

TEST(JobReplicas, ReplicasThatAgreeOnEachStepAddInAsManyRanges) {
  const Job exact = job_of(kSmall, {"microbatch_size=16", "replicas=4"});
  EXPECT_EQ(exact.gradient_ranges, 4u);
  EXPECT_FALSE(exact.replicas.are_local());
  EXPECT_EQ(job_of(kSmall, {"microbatch_size=16", "replicas=4", "gradient_ranges=2"}).gradient_ranges, 2u);
  EXPECT_EQ(job_of(kSmall, {"microbatch_size=16", "replicas=4", "sync={every: step}"}).replicas,
            exact.replicas);
  const Job coded = job_of(kSmall, {"microbatch_size=16", "replicas=4", "sync={every: step, codec: int8}"});
  EXPECT_EQ(coded.gradient_ranges, 4u);
  EXPECT_FALSE(coded.replicas.are_local());
  EXPECT_EQ(compress::name(coded.replicas.codec), "int8");
  const Job some = job_of(kSmall, {"microbatch_size=16", "replicas={min: 2, max: 4}"});
  EXPECT_EQ(some.gradient_ranges, 4u);
  EXPECT_EQ(some.replicas.count, 2u);
  EXPECT_EQ(job_of(kSmall, {"microbatch_size=16", "replicas=auto", "gradient_ranges=2"}).gradient_ranges, 2u);
  EXPECT_FALSE(some.replica_choice.shares_slots);
  EXPECT_TRUE(job_of(kSmall, {"microbatch_size=16", "replicas=4", "optimizer_state=shared"})
                  .replica_choice.shares_slots);
  EXPECT_TRUE(job_of(kSmall, {"optimizer_state=shared"}).replica_choice.shares_slots)
      << "one replica has all of it";
  EXPECT_FALSE(job_of(kSmall, {"replicas=2", "sync.every=30", "optimizer_state=replicated"})
                   .replica_choice.shares_slots);
  const Job shares = job_of(kSmall, {"replicas=3", "sync={every: 30, shares: [30, 10, 4]}"});
  EXPECT_EQ(shares.replicas.shares, (std::vector<uint64_t>{30, 10, 4}));
  EXPECT_FALSE(shares.replica_choice.shares);
  const Job by_speed = job_of(kSmall, {"replicas=3", "sync={every: 30, shares: auto}"});
  EXPECT_TRUE(by_speed.replica_choice.shares && by_speed.replicas.shares.empty());
  EXPECT_FALSE(by_speed.may_grow());
  const Job grows = job_of(kSmall, {"replicas=auto", "sync={every: 30}"});
  EXPECT_TRUE(grows.may_grow());
  EXPECT_EQ(grows.replicas.count, 1u);
  EXPECT_EQ(grows.gradient_ranges, 1u);
  const Job range = job_of(kSmall, {"replicas={min: 2, max: 8}", "sync={every: 30, shares: auto}"});
  EXPECT_TRUE(range.may_grow() && range.replica_choice.shares);
  EXPECT_EQ(range.replicas.count, 2u);
  EXPECT_EQ(range.replica_choice.count_max, 8u);
  EXPECT_FALSE(job_of(kSmall, {"replicas={min: 2, max: 2}", "sync={every: 30}"}).may_grow());
  const Job local = job_of(kSmall, {"replicas=4", "sync={every: 30, codec: \"topk:0.02:int4\"}"});
  EXPECT_EQ(local.gradient_ranges, 1u);
  EXPECT_EQ(local.replicas.every, 30u);
  EXPECT_EQ(compress::name(local.replicas.codec), "topk:0.02:int4");
  EXPECT_EQ(local.replicas.outer, replicas::OuterSpec{});
  EXPECT_FALSE(local.replicas.overlap());
  EXPECT_EQ(job_of(kSmall, {"sync={every: 30, overlap: true}"}).replicas.settle_every, 4u);
  EXPECT_EQ(job_of(kSmall, {"sync={every: 30, overlap: true, settle_every: 9}"}).replicas.settle_every, 9u);
  const Job turns = job_of(
      kSmall,
      {"replicas=2", "sync={every: 30, shares: [30, 15], overlap: true, settle_every: 6, fragments: 3}"});
  EXPECT_EQ(turns.replicas.fragments, 3u);
  EXPECT_EQ(turns.replicas.every, 10u) << "of a round, which is about one of them";
  EXPECT_EQ(turns.replicas.shares, (std::vector<uint64_t>{10, 5}));
  EXPECT_EQ(turns.replicas.settle_every, 18u);
  const Job open = job_of(kSmall, {"sync={every: {min: 10, max: 100}, overlap: true, fragments: 5}"});
  EXPECT_EQ(open.replicas.every, 2u);
  EXPECT_EQ(open.replica_choice.every_max, 20u);
  EXPECT_EQ(job_of(kSmall, {"sync={every: 7, fragments: 1}"}).replicas.fragments, 1u);
}

// What a job leaves open of its rounds, and what a record of them says.
TEST(JobReplicas, RoundsCanBeLeftOpen) {
  EXPECT_FALSE(job_of(kSmall, {"sync={every: 30, codec: int4}"}).leaves_rounds_open());
  const Job open = job_of(kSmall, {"replicas=4", "sync={every: {min: 10, max: 100}, codec: auto}"});
  EXPECT_TRUE(open.leaves_rounds_open());
  EXPECT_EQ(open.replicas.every, 10u) << "what one machine takes";
  EXPECT_EQ(open.replica_choice.every_max, 100u);
  EXPECT_EQ(compress::name(open.replicas.codec), "int4");
  const auto chosen =
      open.with_chosen_rounds("{every: 40, codec: \"topk:0.02:int4\", outer: {type: average}}");
  ASSERT_TRUE(chosen.has_value()) << chosen.error().message;
  EXPECT_FALSE(chosen->leaves_rounds_open());
  EXPECT_EQ(chosen->replicas.every, 40u);
  EXPECT_EQ(compress::name(chosen->replicas.codec), "topk:0.02:int4");
  EXPECT_EQ(chosen->replicas.outer, open.replicas.outer) << "the job says it";
  const Job half = job_of(kSmall, {"sync={every: {min: 10, max: 100}, codec: dense}"});
  EXPECT_EQ(half.with_chosen_rounds("{every: 100, codec: int8}")->replicas.codec, compress::Codec{});
  const std::pair<const char*, const char*> refused[] = {
      {"{every: 9, codec: int4}", "rounds of 9 steps, and the job allows 10 to 100"},
      {"{every: 101, codec: int4}", "rounds of 101 steps"},
      {"{every: 10, codec: int8}", "the codec int8, which `auto` does not take"},
      {"step", "rounds of 0 steps"},
      {"{every: ten, codec: int4}", "`sync.every` must be a whole number"},
      {"{every: [", "the record"},
  };
  for (const auto& [sync, what] : refused) {
    const auto none = open.with_chosen_rounds(sync);
    ASSERT_FALSE(none.has_value()) << sync;
    EXPECT_EQ(none.error().code, ErrorCode::InvalidArgument) << sync;
    EXPECT_NE(none.error().message.find(what), std::string::npos) << none.error().message;
  }
}

}  // namespace
}  // namespace weft::configs
