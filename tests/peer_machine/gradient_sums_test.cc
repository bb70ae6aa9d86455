// Where replicas add each step's gradients: which sums may come, when, and what waits for them.
#include "peer/machine/gradient_sums.h"

#include "dag/op_table.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using peer::GradientSums;
using peer::TaskKind;
using plan::Seat;
using proto::Direction;
using proto::TensorHeader;

// Replica 1 of 3, which have 2, 1 and 2 of 5 ranges; it adds up w0, and replica 2's stage 3 w1.
proto::AssignStage summing() {
  proto::AssignStage assign = assignment();
  dag::GraphBuilder builder(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {16}};
  const dag::ValueId x = builder.input("x", spec);
  const dag::ValueId w0 = builder.initializer("w0", spec, dag::InitializerRole::Parameter);
  const dag::ValueId w1 = builder.initializer("w1", spec, dag::InitializerRole::Parameter);
  const dag::ValueId sum = builder.add(dag::OpKind::Add, {x, w0});
  builder.output("loss", builder.add(dag::OpKind::Add, {sum, w1}), dag::OutputRole::Prediction);
  assign.programs[0].graph = std::make_shared<const dag::Graph>(builder.finish());
  assign.programs[0].segment_of_op.assign(assign.programs[0].graph->ops().size(), 0);
  assign.seat = {0, 1};
  assign.training.steps = 40;
  assign.training.batch_size = 10 * assign.training.microbatch_size;
  assign.training.gradient_ranges = 5;
  assign.exact = proto::ExactTerms{{2, 1, 2},
                                   {{.number = 5, .name = "w0", .owner = 1, .stages = {1, 0, 2}},
                                    {.number = 9, .name = "w1", .owner = 2, .stages = {0, 0, 3}}}};
  return assign;
}

struct Summing {
  proto::AssignStage assign = summing();
  GradientSums sums{std::make_shared<const proto::AssignStage>(assign)};

  TensorHeader header(const Seat& from, uint32_t number, uint32_t range, uint64_t step) const {
    return {.run = 1,
            .plan_version = 1,
            .step = step,
            .microbatch = range,
            .edge = number,
            .program = proto::ProgramKind::Sum,
            .direction = number == 5 ? Direction::Forward : Direction::Backward,
            .replica = static_cast<uint16_t>(from.replica),
            .spec = peer::summed_tensors(assign).front().spec};
  }
  Status come(const Seat& from, uint32_t number, uint32_t range, uint64_t step, uint64_t completed = 0) {
    return sums.on_tensor(from, header(from, number, range, step), completed);
  }
};

TEST(GradientSums, AddUpWhatAllOthersSentAndThenTakeTheirSums) {
  Summing here;
  EXPECT_FALSE(here.sums.next(1).has_value());
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 1).has_value()) << "two ranges that begin with the first are one sum";
  EXPECT_TRUE(here.come({2, 2}, 5, 3, 1).has_value());
  EXPECT_TRUE(here.come({3, 2}, 9, 0, 1).has_value()) << "the sum of others may be there before";
  EXPECT_FALSE(here.sums.next(1).has_value());
  EXPECT_TRUE(here.come({2, 2}, 5, 4, 1).has_value());
  EXPECT_EQ(here.sums.last_to_come(1, false), (Seat{2, 2}));
  EXPECT_EQ(here.sums.last_to_come(1, true), (Seat{3, 2}));
  EXPECT_EQ(here.sums.next(1).value().kind, TaskKind::Reduce);
  EXPECT_TRUE(here.sums.are_due(1, /*updated=*/false));
  EXPECT_EQ(here.sums.next(1).value().kind, TaskKind::Gather);
  EXPECT_FALSE(here.sums.are_due(1, /*updated=*/false));
  here.sums.finish(1);
  EXPECT_FALSE(here.sums.next(2).has_value());
}

// With shared slots what comes of others is what their updates made: it is taken after the stage's own.
TEST(GradientSums, AreTakenBeforeTheUpdateAndWithSharedSlotsAfterIt) {
  for (const bool shared : {false, true}) {
    Summing here;
    here.assign.exact->shared_slots = shared;
    GradientSums sums(std::make_shared<const proto::AssignStage>(here.assign));
    EXPECT_EQ(sums.end_step(), shared);
    for (const auto& [from, range] :
         {std::pair(Seat{1, 0}, 0u), std::pair(Seat{2, 2}, 3u), std::pair(Seat{2, 2}, 4u)})
      EXPECT_TRUE(sums.on_tensor(from, here.header(from, 5, range, 1), 0).has_value());
    EXPECT_TRUE(sums.are_due(1, /*updated=*/false));
    EXPECT_EQ(sums.next(1).value().kind, TaskKind::Reduce);
    EXPECT_EQ(sums.are_due(1, /*updated=*/false), !shared);
    EXPECT_EQ(sums.are_due(1, /*updated=*/true), shared);
    EXPECT_FALSE(sums.next(1).has_value());
    EXPECT_TRUE(sums.on_tensor({3, 2}, here.header({3, 2}, 9, 0, 1), 0).has_value());
    EXPECT_EQ(sums.next(1).value().kind, TaskKind::Gather);
    for (const bool updated : {false, true}) EXPECT_FALSE(sums.are_due(1, updated));
  }
}

TEST(GradientSums, AreOfTheStepAtHandOrTheNext) {
  Summing here;
  EXPECT_FALSE(here.come({1, 0}, 5, 0, 4, 4).has_value());
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 5, 4).has_value());
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 6, 4).has_value());
  EXPECT_FALSE(here.come({1, 0}, 5, 0, 7, 4).has_value());
  EXPECT_FALSE(here.come({1, 0}, 5, 0, 41, 40).has_value()) << "the run has 40";
}

TEST(GradientSums, RefuseWhatTheAssignmentDoesNotSay) {
  const auto refused = [](const Seat& from, uint32_t number, uint32_t range, const auto& change) {
    Summing here;
    TensorHeader header = here.header(from, number, range, 1);
    change(header);
    const Status status = here.sums.on_tensor(from, header, 0);
    return !status && status.error().code == ErrorCode::InvalidArgument;
  };
  const auto as_it_is = [](TensorHeader&) {};
  EXPECT_FALSE(refused({1, 0}, 5, 0, as_it_is));
  EXPECT_TRUE(refused({1, 0}, 5, 1, as_it_is)) << "the first ranges come as one";
  EXPECT_TRUE(refused({2, 2}, 5, 2, as_it_is)) << "the range is this replica's";
  EXPECT_TRUE(refused({2, 2}, 5, 5, as_it_is)) << "there are five";
  EXPECT_TRUE(refused({1, 2}, 5, 3, as_it_is)) << "another stage of the replica";
  EXPECT_TRUE(refused({0, 1}, 5, 2, as_it_is)) << "its own";
  EXPECT_TRUE(refused({1, 0}, 9, 0, as_it_is)) << "the owner is replica 2";
  EXPECT_TRUE(refused({3, 2}, 9, 1, as_it_is)) << "a sum has no range";
  EXPECT_TRUE(refused({1, 0}, 5, 0, [](TensorHeader& header) { header.edge = 7; }));
  EXPECT_TRUE(refused({1, 0}, 5, 0, [](TensorHeader& header) { header.replica = 2; }));
  EXPECT_TRUE(refused({1, 0}, 5, 0, [](TensorHeader& header) { header.replica = 9; }));
  EXPECT_TRUE(refused({1, 0}, 5, 0, [](TensorHeader& header) { header.direction = Direction::Backward; }));
  EXPECT_TRUE(refused({1, 0}, 5, 0, [](TensorHeader& header) { header.spec.shape = {8}; }));
  EXPECT_TRUE(
      refused({1, 0}, 5, 0, [](TensorHeader& header) { header.codec = compress::parse("int8").value(); }));
  Summing here;
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 1).has_value());
  EXPECT_FALSE(here.come({1, 0}, 5, 0, 1).has_value()) << "twice";
}

// Or dense, for what is not finite is; where a codec makes a tensor no shorter it is always dense.
TEST(GradientSums, ComeByTheCodecOfTheAssignment) {
  const auto refusal = [](const char* assigned, const char* comes, bool is_sum) {
    Summing here;
    here.assign.exact->codec = compress::parse(assigned).value();
    here.sums = GradientSums(std::make_shared<const proto::AssignStage>(here.assign));
    TensorHeader header = is_sum ? here.header({3, 2}, 9, 0, 1) : here.header({1, 0}, 5, 0, 1);
    header.codec = compress::parse(comes).value();
    const Status status = here.sums.on_tensor(is_sum ? Seat{3, 2} : Seat{1, 0}, header, 0);
    EXPECT_TRUE(status || status.error().code == ErrorCode::InvalidArgument);
    return status ? std::string() : status.error().message;
  };
  for (const bool is_sum : {false, true}) {
    EXPECT_EQ(refusal("int8", "int8", is_sum), "");
    EXPECT_EQ(refusal("int8", "dense", is_sum), "");
    EXPECT_NE(refusal("int8", "int4", is_sum).find("it comes as int4, expected int8"), std::string::npos);
    EXPECT_NE(refusal("int8", "topk:0.5:int8", is_sum).find("expected int8"), std::string::npos);
    EXPECT_NE(refusal("dense", "int8", is_sum).find("it comes as int8, expected dense"), std::string::npos);
  }
  proto::AssignStage assign = summing();
  assign.exact->codec = compress::parse("int8").value();
  auto tensors = peer::summed_tensors(assign);
  EXPECT_EQ(compress::name(tensors[0].codec(assign)), "int8");
  tensors[0].spec.shape = {2};
  EXPECT_EQ(compress::name(tensors[0].codec(assign)), "dense");
  tensors[1].fresh.emplace();
  EXPECT_EQ(compress::name(tensors[1].codec(assign)), "dense") << "a running statistic";
}

// Of a running statistic comes what each replica's microbatches made of it, a row for each; back goes what it
// is.
TEST(GradientSums, OfARunningStatisticAreRowsOfMicrobatches) {
  proto::AssignStage assign = summing();
  dag::GraphBuilder builder(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {16}};
  const dag::ValueId x = builder.input("x", spec);
  const dag::ValueId mean = builder.initializer("mean", spec, dag::InitializerRole::RunningStatistic);
  builder.output("mean", builder.add(dag::OpKind::Add, {mean, x}), dag::OutputRole::StateUpdate);
  assign.programs[0].graph = std::make_shared<const dag::Graph>(builder.finish());
  assign.programs[0].segment_of_op.assign(assign.programs[0].graph->ops().size(), 0);
  assign.exact->tensors = {{.number = 5, .name = "mean", .owner = 1, .stages = {1, 0, 2}}};
  GradientSums sums(std::make_shared<const proto::AssignStage>(assign));
  const auto come = [&](const Seat& from, uint32_t range, int64_t rows) {
    return sums
        .on_tensor(from,
                   {.step = 1,
                    .microbatch = range,
                    .edge = 5,
                    .program = proto::ProgramKind::Sum,
                    .direction = Direction::Forward,
                    .replica = static_cast<uint16_t>(from.replica),
                    .spec = {dag::DType::F32, {rows, 16}}},
                   0)
        .has_value();
  };
  EXPECT_FALSE(come({1, 0}, 0, 2)) << "two ranges of two microbatches";
  EXPECT_FALSE(come({1, 0}, 1, 4)) << "under its first range";
  EXPECT_TRUE(come({1, 0}, 0, 4));
  EXPECT_FALSE(come({1, 0}, 0, 4)) << "twice";
  EXPECT_FALSE(sums.next(1).has_value());
  EXPECT_FALSE(come({2, 2}, 4, 4));
  EXPECT_TRUE(come({2, 2}, 3, 4));
  EXPECT_EQ(sums.next(1).value().kind, TaskKind::Reduce);
}

}  // namespace
}  // namespace weft::test
