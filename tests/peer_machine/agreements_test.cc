// Where replicas with local steps agree: which tensors may come, when, and what waits for them.
#include "peer/machine/agreements.h"

#include "dag/op_table.h"
#include "peer/machine/agreement_turns.h"
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using peer::Agreements;
using plan::Seat;
using proto::Direction;
using proto::TensorHeader;
using replicas::LocalSteps;

// Replica 1 of 3, every 4 of 40 steps; it owns w0, and replica 2's stage 3 owns w1.
proto::AssignStage agreeing() {
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
  assign.local.emplace().steps = {.terms = {.count = 3, .every = 4}, .steps = 40};
  assign.training.steps = last_inner_step(assign.local->steps);
  assign.local->tensors = {{.number = 5, .name = "w0", .owner = 1, .stages = {1, 0, 2}},
                           {.number = 9, .name = "w1", .owner = 2, .stages = {0, 0, 3}}};
  return assign;
}

TensorHeader header_of(const proto::AssignStage& assign, const Seat& from, uint32_t number, uint64_t before) {
  const size_t index = number == 5 ? 0 : 1;
  return {.run = 1,
          .plan_version = 1,
          .step = before,
          .microbatch = 0,
          .edge = number,
          .program = proto::ProgramKind::Agree,
          .direction = number == 5 ? Direction::Forward : Direction::Backward,
          .replica = static_cast<uint16_t>(from.replica),
          .spec = peer::agreed_weights(assign)[index].spec};
}

struct Here {
  proto::AssignStage assign = agreeing();
  Agreements agreements{std::make_shared<const proto::AssignStage>(assign)};
  Status come(const Seat& from, uint32_t number, uint64_t before, uint64_t completed) {
    return agreements.on_tensor(from, header_of(assign, from, number, before), completed);
  }
};

TEST(Agreements, WaitForAllOthersAndForTheirOwner) {
  Here here;
  EXPECT_FALSE(here.agreements.are_differences_there(4));
  EXPECT_FALSE(here.agreements.are_means_there(4));
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 3).has_value());
  EXPECT_FALSE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.come({2, 2}, 5, 0, 3).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(4));
  EXPECT_EQ(here.agreements.last_to_come(4, false), (Seat{2, 2}));
  EXPECT_TRUE(here.come({3, 2}, 9, 0, 3).has_value());
  EXPECT_TRUE(here.agreements.are_means_there(4));
  EXPECT_FALSE(here.agreements.are_differences_there(8)) << "those of the next round are others";
  here.agreements.finish(4);
  EXPECT_FALSE(here.agreements.are_means_there(4));
}

// 40 steps are three rounds of 12 and one of 4, of which the others make one each.
TEST(Agreements, WaitForNobodyWhoHadNoPartInTheRound) {
  Here here;
  here.assign.local->steps.steps = 37;  // the last round deals one step, to the first replica
  here.assign.training.steps = last_inner_step(here.assign.local->steps);
  here.agreements = Agreements(std::make_shared<const proto::AssignStage>(here.assign));
  EXPECT_TRUE(here.come({1, 0}, 5, 36, 12).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(13));
}

TEST(Agreements, TakeWhatIsOneRoundAheadAndNothingElse) {
  Here here;
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 0).has_value());
  EXPECT_TRUE(here.come({1, 0}, 5, 12, 0).has_value());
  EXPECT_FALSE(here.come({1, 0}, 5, 24, 0).has_value()) << "two rounds ahead";
  EXPECT_FALSE(here.come({2, 2}, 5, 0, 4).has_value()) << "it is over";
  EXPECT_FALSE(here.come({2, 2}, 5, 7, 0).has_value()) << "no round begins there";
}

// Rounds of 12 steps, 4 of each replica; each third one settles.
struct Overlapping : Here {
  Overlapping() {
    assign.local->steps.terms.settle_every = 3;
    agreements = Agreements(shared());
  }
  std::shared_ptr<const proto::AssignStage> shared() const {
    return std::make_shared<const proto::AssignStage>(assign);
  }
};

TEST(Agreements, TakeWhatIsOfARoundThatOverlapsTheOneUnderWay) {
  Overlapping here;
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 6).has_value()) << "of the round before";
  EXPECT_TRUE(here.come({1, 0}, 5, 12, 6).has_value()) << "of this one";
  EXPECT_TRUE(here.come({1, 0}, 5, 24, 6).has_value()) << "of the next";
  EXPECT_FALSE(here.come({2, 2}, 5, 0, 8).has_value()) << "two rounds ago";
  here.agreements.finish(4);
  EXPECT_FALSE(here.come({2, 2}, 5, 0, 6).has_value()) << "it is over";
  EXPECT_EQ(here.agreements.end_of(12, 6), 8u);
  EXPECT_EQ(here.agreements.end_of(0, 6), std::nullopt);
  EXPECT_FALSE(here.come({1, 0}, 5, 24, 12).has_value()) << "the third one settled";
}

TEST(AgreementTurns, GoOnWhileARoundIsAgreedOn) {
  Overlapping here;
  peer::AgreementTurns turns(here.shared(), here.agreements);
  const auto expect = [&](uint64_t at, peer::TaskKind kind, uint64_t of, bool ends) {
    const auto task = turns.next(at, at + 1);
    ASSERT_TRUE(task.has_value());
    EXPECT_EQ(task->kind, kind);
    EXPECT_EQ(task->key.step, of);
    EXPECT_EQ(task->ends_round, ends);
  };
  EXPECT_EQ(turns.next_of_before(), std::nullopt);
  EXPECT_EQ(turns.next(4, 4), std::nullopt) << "it may yet be told to settle";
  expect(4, peer::TaskKind::Differ, 4, true);  // and the next round begins
  EXPECT_EQ(turns.next_of_before(), std::nullopt) << "the others' differences have not come";
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 5).has_value() && here.come({2, 2}, 5, 0, 5).has_value());
  EXPECT_EQ(turns.next_of_before().value().key.step, 4u);
  EXPECT_EQ(turns.next_of_before(), std::nullopt) << "once";
  expect(8, peer::TaskKind::Differ, 8, false);
  EXPECT_EQ(turns.next(8, 9), std::nullopt) << "the mean that another takes has not come";
  EXPECT_TRUE(here.come({3, 2}, 9, 0, 7).has_value());
  expect(8, peer::TaskKind::Agree, 4, true);
  here.agreements.finish(4);
  EXPECT_EQ(turns.next(12, 12), std::nullopt) << "what goes out next waits for what came before";
  EXPECT_TRUE(here.come({1, 0}, 5, 12, 11).has_value() && here.come({2, 2}, 5, 12, 11).has_value() &&
              here.come({3, 2}, 9, 12, 11).has_value() && here.come({1, 0}, 5, 24, 11).has_value() &&
              here.come({2, 2}, 5, 24, 11).has_value() && here.come({3, 2}, 9, 24, 11).has_value());
  expect(12, peer::TaskKind::Mean, 8, false);
  expect(12, peer::TaskKind::Differ, 12, false);
  expect(12, peer::TaskKind::Mean, 12, false);
  expect(12, peer::TaskKind::Agree, 8, false);  // until then somebody may be left out of both
  expect(12, peer::TaskKind::Agree, 12, true);  // all have the same weights
}

// Of three, the third is lost while the second round is made: what they agree on about the first begins again
// without it, too, and the second one settles.
TEST(AgreementTurns, BeginAgainWithoutAReplicaThatIsLost) {
  Overlapping here;
  peer::AgreementTurns turns(here.shared(), here.agreements);
  const auto next = [&](uint64_t at) { return turns.next(at, at + 1).value(); };
  ASSERT_EQ(next(4).kind, peer::TaskKind::Differ);
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 5).has_value() && here.come({2, 2}, 5, 0, 5).has_value() &&
              here.come({3, 2}, 9, 0, 5).has_value());
  ASSERT_EQ(turns.next_of_before().value().kind, peer::TaskKind::Mean);
  turns.on_guarded(4, {});
  const proto::Command leave_out{.kind = proto::CommandKind::LeaveOut, .step = 8, .left_out = {{2}, 1}};
  EXPECT_TRUE(turns.on_command(leave_out, 5, 5).has_value());
  EXPECT_FALSE(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late)
      << "nobody has agreed on it";
  const auto again = turns.next_of_before().value();
  EXPECT_EQ(again.kind, peer::TaskKind::Differ);
  EXPECT_EQ(again.key.step, 4u);
  EXPECT_EQ(again.attempt(), 1u);
  EXPECT_FALSE(again.settles);
  EXPECT_EQ(turns.next_of_before(), std::nullopt) << "the first replica has not sent it again";
  const auto come = [&](uint32_t number, uint64_t round) {
    TensorHeader header = header_of(here.assign, {number == 5 ? 1u : 0u, 0}, number, round);
    header.direction = Direction::Forward;
    header.microbatch = 1;
    return here.agreements.on_tensor({number == 5 ? 1u : 0u, 0}, header, 5).has_value();
  };
  EXPECT_TRUE(come(5, 0) && come(9, 0));
  EXPECT_FALSE(come(5, 0)) << "twice";
  EXPECT_EQ(turns.next_of_before().value().kind, peer::TaskKind::Mean);
  turns.on_guarded(4, {});
  const auto of_second = turns.next(8, 8).value();
  EXPECT_EQ(of_second.kind, peer::TaskKind::Differ);
  EXPECT_TRUE(of_second.settles && of_second.left_out != nullptr);
  EXPECT_TRUE(come(5, 12) && come(9, 12));
  EXPECT_EQ(turns.next(8, 8).value().kind, peer::TaskKind::Mean);
  turns.on_guarded(8, {});
  const auto first = turns.next(8, 8).value(), second = turns.next(8, 8).value();
  EXPECT_TRUE(first.kind == peer::TaskKind::Agree && first.key.step == 4 && !first.settles &&
              !first.ends_round);
  EXPECT_TRUE(second.kind == peer::TaskKind::Agree && second.key.step == 8 && second.settles &&
              second.ends_round);
}

// Who follows has sent nothing: what is agreed on stays as it is, also where it is agreed on already.
TEST(AgreementTurns, GoOnWhereAFollowerIsLost) {
  for (const bool is_over : {false, true}) {
    Overlapping here;
    here.assign.local->steps.terms.followers = {0};
    here.agreements = Agreements(here.shared());
    peer::AgreementTurns turns(here.shared(), here.agreements);
    ASSERT_EQ(turns.next(4, 5).value().kind, peer::TaskKind::Differ);
    const proto::Command leave_out{.kind = proto::CommandKind::LeaveOut, .step = 8, .left_out = {{0}, 1}};
    EXPECT_TRUE(turns.on_command(leave_out, 5, is_over ? 8 : 5).has_value());
    EXPECT_FALSE(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late);
    EXPECT_EQ(turns.next_of_before(), std::nullopt) << "its difference is on its way";
    EXPECT_TRUE(here.come({2, 2}, 5, 0, 5).has_value()) << "with the number that it had";
    const auto mean = turns.next_of_before();
    ASSERT_TRUE(mean.has_value());
    EXPECT_EQ(mean->kind, peer::TaskKind::Mean);
    EXPECT_EQ(mean->attempt(), 0u);
  }
}

// Of the round before the last two it has all that the lost one was to send, or it says so.
TEST(AgreementTurns, SayThatTheyLackWhatALostOneWasToSend) {
  for (const bool is_there : {true, false}) {
    Overlapping here;
    here.assign.local->steps.terms.settle_every = 5;
    here.agreements = Agreements(here.shared());
    peer::AgreementTurns turns(here.shared(), here.agreements);
    ASSERT_EQ(turns.next(4, 5).value().kind, peer::TaskKind::Differ);
    EXPECT_TRUE(here.come({1, 0}, 5, 0, 5).has_value() && here.come({2, 2}, 5, 0, 5).has_value());
    EXPECT_TRUE(!is_there || here.come({3, 2}, 9, 0, 5).has_value());
    const proto::Command leave_out{.kind = proto::CommandKind::LeaveOut, .step = 12, .left_out = {{2}, 0}};
    EXPECT_TRUE(turns.on_command(leave_out, 5, 5).has_value());
    EXPECT_EQ(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late, !is_there);
  }
}

// All have agreed with it, and it is gone: nothing is agreed on again, and nobody waits for it.
TEST(AgreementTurns, KnowWhoIsGoneWhenAllHaveAgreed) {
  for (const bool have_agreed : {true, false}) {
    Overlapping here;
    peer::AgreementTurns turns(here.shared(), here.agreements);
    const proto::Command leave_out{.kind = proto::CommandKind::LeaveOut,
                                   .step = 12,
                                   .committed = have_agreed ? 12u : 11u,
                                   .left_out = {{2}, 1}};
    EXPECT_TRUE(turns.on_command(leave_out, 12, 12).has_value());
    EXPECT_TRUE(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late);
    const auto left_out = here.agreements.left_out();
    EXPECT_EQ(left_out != nullptr && left_out->has(2), have_agreed) << "else the run goes back";
    EXPECT_EQ(here.agreements.left_out(12), nullptr) << "it had its part in that";
  }
}

// Where what replicas send is bounded the means are looked at before anybody takes them.
TEST(AgreementTurns, TakeNoMeansThatAreOutOfAllProportion) {
  Here here;
  here.assign.local->norm_bound = 10;
  const auto assign = std::make_shared<const proto::AssignStage>(here.assign);
  here.agreements = Agreements(assign);
  peer::AgreementTurns turns(assign, here.agreements);
  ASSERT_EQ(turns.next(4, 4).value().kind, peer::TaskKind::Differ);
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 3).has_value() && here.come({2, 2}, 5, 0, 3).has_value() &&
              here.come({3, 2}, 9, 0, 3).has_value());
  ASSERT_EQ(turns.next(4, 4).value().kind, peer::TaskKind::Mean);
  EXPECT_EQ(turns.next(4, 4), std::nullopt) << "it is not done";
  turns.on_guarded(4, {});
  ASSERT_EQ(turns.next(4, 4).value().kind, peer::TaskKind::Weigh);
  EXPECT_EQ(turns.next(4, 4), std::nullopt) << "likewise";
  turns.on_guarded(4, {.refused = replicas::Outlier{.replica = 2, .ratio = 50}});
  const auto reports = turns.take_reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(std::get<proto::DifferenceRefused>(reports[0]).replica, 2u);
  EXPECT_EQ(turns.next(4, 4), std::nullopt) << "until the run goes on without it";
  EXPECT_TRUE(turns.on_command({.kind = proto::CommandKind::LeaveOut, .step = 4, .left_out = {{2}, 1}}, 3, 3)
                  .has_value());
  EXPECT_FALSE(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late);
  EXPECT_EQ(turns.next(4, 4).value().kind, peer::TaskKind::Differ) << "again";
}

TEST(AgreementTurns, SettleWhereTheyAreTold) {
  Overlapping here;
  peer::AgreementTurns turns(here.shared(), here.agreements);
  const proto::Command settle{.kind = proto::CommandKind::Settle, .step = 4};
  EXPECT_FALSE(turns.on_command(settle, 4, 4).has_value()) << "it is over";
  EXPECT_TRUE(turns.on_command(settle, 3, 3).has_value());
  EXPECT_TRUE(turns.settles(4));
  const auto differ = turns.next(4, 4).value();
  EXPECT_TRUE(differ.kind == peer::TaskKind::Differ && differ.settles && !differ.ends_round);
  EXPECT_FALSE(turns.on_command({.kind = proto::CommandKind::Settle, .step = 8}, 3, 3).has_value());
}

// w0, which is added up here, is in the first fragment, and w1 in the second.
struct InFragments : Overlapping {
  InFragments() {
    assign.local->steps.terms.fragments = 2;
    assign.local->tensors[1].fragment = 1;
    agreements = Agreements(shared());
  }
};

TEST(Agreements, WaitForWhatARoundIsAboutAlone) {
  InFragments here;
  EXPECT_TRUE(here.agreements.takes_means(4) && !here.agreements.takes_means(8));
  EXPECT_TRUE(here.agreements.are_means_there(4)) << "w1 is not its turn";
  EXPECT_FALSE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 4).has_value() && here.come({2, 2}, 5, 0, 4).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.agreements.are_differences_there(8)) << "w0 is not its turn";
  EXPECT_FALSE(here.agreements.are_means_there(8));
  EXPECT_TRUE(here.agreements.has_all_of({2}, 4, false));
  EXPECT_FALSE(here.agreements.has_all_of({2}, 8, false)) << "its mean of w1";
  EXPECT_TRUE(here.agreements.has_all_of({0}, 8, false));
  EXPECT_TRUE(here.agreements.takes_means(12)) << "the third one settles, and is about both";
  EXPECT_FALSE(here.agreements.are_differences_there(12) || here.agreements.are_means_there(12));
}

// Others may have heard so first.
TEST(Agreements, AreAboutAllOfTheModelWhereTheyAreToldToSettle) {
  InFragments here;
  EXPECT_TRUE(here.come({3, 2}, 9, 0, 3).has_value()) << "of a fragment that is not its turn";
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 3).has_value() && here.come({2, 2}, 5, 0, 3).has_value());
  peer::AgreementTurns turns(here.shared(), here.agreements);
  EXPECT_TRUE(turns.on_command({.kind = proto::CommandKind::Settle, .step = 4}, 3, 3).has_value());
  EXPECT_TRUE(here.agreements.are_means_there(4) && here.agreements.are_differences_there(4));
  InFragments other;
  other.agreements.settle(8);
  EXPECT_FALSE(other.agreements.are_differences_there(8)) << "w0 is, too";
}

// 37 steps are three rounds and a step of the first replica. The others made none, and had learnt something
// before.
TEST(Agreements, WaitForWhoHadAPartInARoundBefore) {
  InFragments here;
  LocalSteps& steps = here.assign.local->steps;
  steps.terms.settle_every = 16;
  steps.steps = 37;
  here.assign.training.steps = last_inner_step(steps);
  here.agreements = Agreements(here.shared());
  EXPECT_TRUE(here.come({1, 0}, 5, 36, 12).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(13)) << "w0 was agreed about in the third";
  steps.terms.every = 3;  // four rounds of 9 and a step: in the fourth it was w1's turn
  here.assign.training.steps = last_inner_step(steps);
  here.agreements = Agreements(here.shared());
  EXPECT_TRUE(here.come({1, 0}, 5, 36, 12).has_value());
  EXPECT_FALSE(here.agreements.are_differences_there(13));
  EXPECT_TRUE(here.come({2, 2}, 5, 36, 12).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(13));
}

// A follower is lost where a fragment's differences were sent, and now nobody is to be waited for later.
TEST(AgreementTurns, CannotSettleARoundThatWasAboutLess) {
  InFragments here;
  here.assign.local->steps.terms.followers = {2};
  here.assign.local->tensors[1].owner = 0;
  here.agreements = Agreements(here.shared());
  peer::AgreementTurns turns(here.shared(), here.agreements);
  EXPECT_EQ(turns.next(4, 5).value().kind, peer::TaskKind::Differ);
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 5).has_value());
  EXPECT_EQ(turns.next_of_before().value().kind, peer::TaskKind::Mean);
  EXPECT_EQ(turns.next(8, 9).value().kind, peer::TaskKind::Differ);
  const proto::Command lost{.kind = proto::CommandKind::LeaveOut, .step = 8, .left_out = {{2}, 0}};
  EXPECT_TRUE(turns.on_command(lost, 7, 7).has_value());
  EXPECT_TRUE(std::get<proto::ReplicasLeftOut>(turns.take_reports().at(0)).too_late);
  EXPECT_FALSE(turns.settles(8));
}

TEST(Agreements, RefuseWhatIsNotTheAssignments) {
  const auto refused = [](const Seat& from, uint32_t number, const std::function<void(TensorHeader&)>& spoil,
                          const std::string& word) {
    Here here;
    TensorHeader header = header_of(here.assign, from, number, 0);
    spoil(header);
    const Status status = here.agreements.on_tensor(from, header, 0);
    ASSERT_FALSE(status.has_value()) << word;
    EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  };
  const auto as_it_is = [](TensorHeader&) {};
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.edge = 6; }, "none of that number");
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.direction = Direction::Backward; }, "taken here");
  refused(
      {3, 2}, 9, [](TensorHeader& h) { h.direction = Direction::Forward; }, "not added up here");
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.microbatch = 3; }, "attempt");
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.spec.shape.push_back(2); }, "expected");
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.codec = *compress::parse("int8"); }, "expected dense");
  refused(
      {1, 0}, 5, [](TensorHeader& h) { h.replica = 2; }, "another seat");
  refused({0, 0}, 5, as_it_is, "another seat");
  refused({0, 1}, 5, as_it_is, "another seat");
  refused({1, 7}, 5, as_it_is, "another seat");
  Here here;
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 0).has_value());
  EXPECT_FALSE(here.come({1, 0}, 5, 0, 0).has_value()) << "twice";
}

// Of three, the second takes a mean and the third one; the third is lost.
TEST(Agreements, GoOnWithoutAReplicaThatIsLost) {
  Here here;
  EXPECT_TRUE(here.come({1, 0}, 5, 0, 3).has_value());
  EXPECT_FALSE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.agreements.takes_means(4));
  // The first has heard of it before, and sends the mean that it takes in its place.
  const auto again = [&](const Seat& from, uint32_t number) {
    TensorHeader header = header_of(here.assign, from, number, 0);
    header.microbatch = 1;
    return here.agreements.on_tensor(from, header, 3).has_value();
  };
  EXPECT_TRUE(again({0, 0}, 9));
  EXPECT_FALSE(here.agreements.are_means_there(4)) << "not yet its to take";
  here.agreements.leave_out(
      std::make_shared<const replicas::LeftOut>(replicas::LeftOut{.replicas = {2}, .owner = 0, .attempt = 1}),
      4);
  EXPECT_FALSE(here.agreements.are_differences_there(4)) << "all is sent again";
  EXPECT_TRUE(again({1, 0}, 5));
  EXPECT_TRUE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.agreements.are_means_there(4));
  EXPECT_TRUE(here.come({3, 2}, 9, 0, 3).has_value()) << "what was on its way still";
}

TEST(Agreements, TakeAMeanInTheirPlace) {
  Here here;
  here.agreements.leave_out(
      std::make_shared<const replicas::LeftOut>(replicas::LeftOut{.replicas = {2}, .owner = 1, .attempt = 1}),
      4);
  TensorHeader header = header_of(here.assign, {1, 0}, 5, 0);
  header.microbatch = 1;
  EXPECT_TRUE(here.agreements.on_tensor({1, 0}, header, 3).has_value());
  EXPECT_FALSE(here.agreements.are_differences_there(4)) << "of the other tensor it takes the mean, too";
  header = header_of(here.assign, {0, 0}, 9, 0);
  header.microbatch = 1;
  header.direction = Direction::Forward;
  EXPECT_TRUE(here.agreements.on_tensor({0, 0}, header, 3).has_value());
  EXPECT_TRUE(here.agreements.are_differences_there(4));
  EXPECT_TRUE(here.agreements.are_means_there(4));
}

// What a broker may say of replicas that are left out, and when.
TEST(Agreements, LeaveOutInTheRoundAtHandAlone) {
  const auto told = [](proto::Command leave_out, uint64_t granted) {
    peer::StageMachine machine(std::make_shared<const proto::AssignStage>(agreeing()));
    leave_out.run = leave_out.plan_version = 1;
    leave_out.kind = proto::CommandKind::LeaveOut;
    leave_out.sequence = 2;
    EXPECT_TRUE(
        machine.on_command({.run = 1, .plan_version = 1, .step = granted, .sequence = 1}).has_value());
    const bool is_heard = machine.on_command(leave_out).has_value();
    EXPECT_EQ(machine.take_reports().size(), is_heard ? 1u : 0u);
    EXPECT_EQ(machine.is_left_out({3, 2}), is_heard);
    return is_heard;
  };
  EXPECT_TRUE(told({.step = 4, .left_out = {{2}, 0}}, 4));
  EXPECT_FALSE(told({.step = 4, .left_out = {{2}, 0}}, 3)) << "not granted";
  EXPECT_FALSE(told({.step = 3, .left_out = {{2}, 0}}, 3)) << "nobody agrees then";
  EXPECT_FALSE(told({.step = 8, .left_out = {{2}, 0}}, 8)) << "they agree before, too";
  EXPECT_FALSE(told({.step = 4, .left_out = {{}, 0}}, 4));
  EXPECT_FALSE(told({.step = 4, .left_out = {{1}, 0}}, 4)) << "this one";
  EXPECT_FALSE(told({.step = 4, .left_out = {{3}, 0}}, 4)) << "nobody";
  EXPECT_FALSE(told({.step = 4, .left_out = {{2}, 7}}, 4));
}

TEST(Agreements, AStageWithoutOthersTakesNothing) {
  peer::StageMachine machine(std::make_shared<const proto::AssignStage>(assignment()));
  EXPECT_FALSE(machine.on_tensor({1, 0}, header_of(agreeing(), {1, 0}, 5, 0)).has_value());
}

TEST(Agreements, SnapshotsComeAfterThemAlone) {
  peer::StageMachine machine(std::make_shared<const proto::AssignStage>(agreeing()));
  const auto command = [&](proto::CommandKind kind, uint64_t step, uint64_t sequence) {
    return machine.on_command(
        {.run = 1, .plan_version = 1, .kind = kind, .step = step, .sequence = sequence});
  };
  EXPECT_TRUE(command(proto::CommandKind::Advance, 3, 1).has_value());
  EXPECT_FALSE(command(proto::CommandKind::CopyState, 3, 2).has_value());
  EXPECT_FALSE(command(proto::CommandKind::Compare, 3, 2).has_value());
  EXPECT_TRUE(command(proto::CommandKind::Advance, 4, 2).has_value());
  EXPECT_TRUE(command(proto::CommandKind::CopyState, 4, 3).has_value());
}

}  // namespace
}  // namespace weft::test
