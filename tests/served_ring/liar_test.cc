// A neighbour in the ring that is honest in its greeting alone: the stage beside it fails and names it, and
// the peer goes on to the next plan.
#include <algorithm>
#include <functional>
#include <limits>

#include "peer/service/link_service.h"
#include "serve/pass.h"
#include "serve/spoilt_rows.h"
#include "tests/served_ring/ring.h"

namespace weft::served {
namespace {

using serve::Pass;
using serve::PassPiece;

// A real peer at one seat of a ring of two, the test at the other.
class LiarTest : public ::testing::Test {
 protected:
  LiarTest() {
    broker_.on_message = [this](const PeerId&, const proto::Message& message) {
      if (const auto* failed = std::get_if<proto::StageFailed>(&message)) failures_.push_back(*failed);
      if (std::holds_alternative<proto::StageReady>(message)) is_ready_ = true;
      if (const auto* told = std::get_if<proto::ServeProgress>(&message)) told_.push_back(*told);
    };
    peer::LinkService::Options options;
    options.identity = liar_.get();
    service_ = std::move(*peer::LinkService::start(
        loop_, std::move(options),
        {.on_all_up = [this](uint64_t generation) { is_up_ = generation == version_; },
         .on_down = [](uint64_t, const plan::Seat&, const Error&) {},
         .on_tensor = [this](uint64_t, const plan::Seat&, const proto::TensorHeader& header,
                             const dag::Tensor& tensor) { came_.emplace_back(header, tensor); }}));
    EXPECT_TRUE(loop_.run_until(kPatience, [&] { return broker_.is_here(peer_.id()); }));
  }

  // The peer gets that seat, by a new plan.
  void assign(uint32_t seat) {
    ++version_;
    failures_.clear();
    came_.clear();
    is_ready_ = is_up_ = false;
    proto::AssignStage assign = model_.assignment(broker_, seat, 2);
    assign.plan_version = version_;
    assign.links = {{.seat = {1 - seat}, .peer = liar_->id()}};
    broker_.say(peer_.id(), assign);
    auto mine = std::make_shared<proto::AssignStage>();
    mine->run = 1;
    mine->plan_version = version_;
    mine->seat = {1 - seat};
    mine->stage_count = 2;
    mine->links = {
        {.seat = {seat}, .peer = peer_.id(), .dials = true, .addresses = {broker_.address_of(peer_.id())}}};
    service_->open(version_, mine);
    edges_ = serve::edges_before(*model_.incremental, model_.first_part(seat, 2));
    ASSERT_TRUE(loop_.run_until(kPatience, [&] { return (is_ready_ && is_up_) || !failures_.empty(); }));
    ASSERT_TRUE(failures_.empty()) << failures_.front().error.message;
    seat_ = seat;
  }

  // Tensors of a pass to the peer's stage, with rows of zeros.
  std::vector<dag::Tensor> tensors_of(const std::vector<PassPiece>& pieces) const {
    const int64_t rows = serve::row_count(pieces);
    std::vector<dag::Tensor> tensors{serve::tensor_of(pieces)};
    for (size_t edge = 1; edge < edges_.size(); ++edge)
      tensors.emplace_back(dag::TensorSpec{edges_[edge].dtype, {rows, edges_[edge].width}});
    return tensors;
  }
  // Those with a NaN in some rows.
  static std::vector<dag::Tensor> with_nan(std::vector<dag::Tensor> tensors,
                                           const std::vector<int64_t>& rows) {
    const auto width = static_cast<size_t>(tensors[1].shape()[1]);
    for (const int64_t row : rows)
      tensors[1].mutable_as<float>()[static_cast<size_t>(row) * width] =
          std::numeric_limits<float>::quiet_NaN();
    return tensors;
  }
  void send(uint64_t pass, const std::vector<dag::Tensor>& tensors, uint32_t behind = 1) {
    for (uint32_t edge = 0; edge < tensors.size(); ++edge) send_one(pass, edge, tensors[edge], behind);
  }
  void send_one(uint64_t pass, uint32_t edge, const dag::Tensor& tensor, uint32_t behind = 1) {
    proto::TensorHeader header{
        .run = 1, .plan_version = version_, .step = pass, .microbatch = behind, .edge = edge};
    header.program = proto::ProgramKind::Serve;
    header.spec = tensor.spec();
    service_->send(version_, {seat_}, header, tensor);
  }

  // Whether the stage passes on what it is sent.
  void expect_to_serve() {
    const size_t before = came_.size();
    send(1, tensors_of({{7, 0, 3, 1, 0}}));
    ASSERT_TRUE(loop_.run_until(kPatience, [&] { return came_.size() > before || !failures_.empty(); }));
    EXPECT_TRUE(failures_.empty()) << failures_.front().error.message;
  }
  void expect_to_be_named(ErrorCode code) {
    ASSERT_TRUE(loop_.run_until(kPatience, [&] { return !failures_.empty(); }));
    EXPECT_EQ(failures_.front().error.code, code) << failures_.front().error.message;
    EXPECT_EQ(failures_.front().unreachable, plan::Seat{1 - seat_}) << failures_.front().error.message;
    EXPECT_FALSE(failures_.front().permanent);
  }

  ServedModel model_;
  net::Loop loop_;
  FakeBroker broker_{loop_};
  std::unique_ptr<security::Identity> liar_ = *security::Identity::generate();
  std::unique_ptr<peer::LinkService> service_;
  PeerThread peer_{broker_};
  uint32_t seat_ = 0;
  proto::PlanVersion version_ = 0;
  std::vector<dag::RowSpec> edges_;
  bool is_ready_ = false, is_up_ = false;
  std::vector<proto::StageFailed> failures_;
  std::vector<proto::ServeProgress> told_;
  std::vector<std::pair<proto::TensorHeader, dag::Tensor>> came_;
};

TEST_F(LiarTest, AStageNamesTheOneBeforeIt) {
  struct Case {
    const char* what;
    ErrorCode code;
    std::function<void()> lie;
  };
  const std::vector<PassPiece> kNext{{7, 3, 2, 1, 0}};
  const auto rows = [&](int64_t count, int64_t width) {
    return dag::Tensor(dag::TensorSpec{edges_[1].dtype, {count, width}});
  };
  const std::vector<Case> kLies{
      {"rows of another width", ErrorCode::InvalidArgument,
       [&] { send_one(2, 1, rows(2, edges_[1].width + 1)); }},
      {"more rows than a pass has", ErrorCode::InvalidArgument,
       [&] { send_one(2, 1, rows(17, edges_[1].width)); }},
      {"an edge that there is not", ErrorCode::InvalidArgument,
       [&] { send_one(2, static_cast<uint32_t>(edges_.size()), rows(2, 4)); }},
      {"NaN of two requests in a pass", ErrorCode::Corrupted,
       [&] {
         send(2, with_nan(tensors_of({{7, 3, 2, 1, 0}, {8, 0, 1, 1, 0}}), {0, 2}));
       }},
      {"infinity of one, then NaN of another", ErrorCode::Corrupted,
       [&] {
         auto tensors = tensors_of(kNext);
         tensors[1].mutable_as<float>()[0] = std::numeric_limits<float>::infinity();
         send(2, tensors);
         send(3, with_nan(tensors_of({{8, 0, 1, 1, 0}}), {0}));
       }},
      {"a pass that came", ErrorCode::InvalidArgument, [&] { send(1, tensors_of(kNext)); }},
      {"a pass behind one that is not the last", ErrorCode::InvalidArgument,
       [&] { send(3, tensors_of(kNext), 3); }},
      {"a gap in a sequence", ErrorCode::InvalidArgument,
       [&] {
         send(2, tensors_of({{7, 5, 2, 1, 0}}));
       }},
      {"a sequence that begins in its middle", ErrorCode::InvalidArgument,
       [&] {
         send(2, tensors_of({{8, 5, 2, 1, 0}}));
       }},
      {"a sequence twice", ErrorCode::InvalidArgument,
       [&] {
         send(2, tensors_of({{7, 3, 1, 1, 0}, {7, 4, 1, 1, 0}}));
       }},
      {"more rows than its pieces have", ErrorCode::InvalidArgument,
       [&] {
         auto tensors = tensors_of(kNext);
         tensors[0] = serve::tensor_of(std::vector<PassPiece>{{7, 3, 1, 1, 0}});
         send(2, tensors);
       }},
      {"a piece of no sense", ErrorCode::InvalidArgument,
       [&] {
         auto tensors = tensors_of(kNext);
         tensors[0].mutable_as<int64_t>()[2] = -2;
         send(2, tensors);
       }},
      {"beyond the context", ErrorCode::InvalidArgument,
       [&] {
         auto tensors = tensors_of(kNext);
         tensors[0].mutable_as<int64_t>()[1] = int64_t{1} << 62;
         send(2, tensors);
       }},
      {"more passes than may be under way", ErrorCode::InvalidArgument,
       [&] {
         for (uint64_t pass = 0; pass < 4; ++pass)
           send_one(serve::kHistoryNumbers + pass, 0, tensors_of(kNext)[0]);
       }},
  };
  for (const Case& one : kLies) {
    SCOPED_TRACE(one.what);
    assign(1);
    expect_to_serve();
    one.lie();
    expect_to_be_named(one.code);
  }
  assign(1);
  expect_to_serve();
}

// A model may make it of one text.
TEST_F(LiarTest, NanOfOneRequestGoesOn) {
  assign(1);
  expect_to_serve();
  const auto goes_on = [&](uint64_t pass, const std::vector<dag::Tensor>& tensors) {
    send(pass, tensors);
    const auto is_it = [&](const auto& came) { return came.first.step == pass; };
    return loop_.run_until(kPatience, [&] {
      return std::any_of(came_.begin(), came_.end(), is_it) || !failures_.empty();
    }) && failures_.empty();
  };
  ASSERT_TRUE(goes_on(2, with_nan(tensors_of({{7, 3, 2, 1, 0}, {8, 0, 1, 1, 0}}), {1})));
  uint64_t pass = 3;
  for (; pass < 3 + serve::SpoiltRows::kPasses; ++pass)
    ASSERT_TRUE(goes_on(pass, tensors_of({{9, static_cast<int64_t>(pass) - 3, 1, 1, 0}})));
  // Another one, and a long time behind it.
  ASSERT_TRUE(goes_on(pass, with_nan(tensors_of({{8, 1, 1, 1, 0}}), {0})));
}

TEST_F(LiarTest, TheEntryEndsTheRequestThatNanIsOf) {
  assign(0);
  for (const uint64_t number : {1, 2})
    broker_.say(
        peer_.id(),
        proto::ServeRequest{
            .run = 1, .plan_version = version_, .request = number, .tokens = {1, 2, 3}, .tokens_max = 1});
  std::map<uint64_t, proto::ServeProgress> ended;
  const auto answer = [&] {
    for (const auto& [header, tensor] : std::exchange(came_, {})) {
      if (header.edge != 0) continue;
      const auto pieces = *serve::pieces_from(tensor, {.rows_max = 16, .context = 96});
      const bool is_first = header.microbatch == header.step;  // one may have overtaken it
      auto tensors = is_first ? with_nan(tensors_of(pieces), {0}) : tensors_of(pieces);
      send(header.step, tensors, header.microbatch);
    }
    for (const auto& told : told_)
      if (told.end) ended[told.request] = told;
    return ended.size() == 2 || !failures_.empty();
  };
  ASSERT_TRUE(loop_.run_until(kPatience, answer));
  ASSERT_TRUE(failures_.empty()) << failures_.front().error.message;
  EXPECT_EQ(ended[1].end, proto::ServeEnd::Failed);
  ASSERT_TRUE(ended[1].error.has_value());
  EXPECT_EQ(ended[1].error->code, ErrorCode::Corrupted) << ended[1].error->message;
  EXPECT_EQ(ended[2].end, proto::ServeEnd::Length);
  ASSERT_FALSE(told_.empty());
  uint64_t rows = 0;
  for (const auto& told : told_) rows += told.load ? told.load->rows : 0;
  EXPECT_EQ(rows, 6u) << "of both prompts";
}

// What begins with the entry comes round changed.
TEST_F(LiarTest, TheEntryNamesTheOneThatBringsBackOtherPasses) {
  struct Case {
    const char* what;
    ErrorCode code;
    std::function<void(uint64_t pass, std::vector<PassPiece> pieces)> lie;
  };
  const std::vector<Case> kLies{
      {"a pass that is not under way", ErrorCode::InvalidArgument,
       [&](uint64_t pass, std::vector<PassPiece> pieces) {
         send(pass + 1, tensors_of(pieces), static_cast<uint32_t>(pass + 1));
       }},
      {"other pieces", ErrorCode::InvalidArgument,
       [&](uint64_t pass, std::vector<PassPiece> pieces) {
         pieces[0].sequence += 1;
         send(pass, tensors_of(pieces), static_cast<uint32_t>(pass));
       }},
  };
  for (const Case& one : kLies) {
    SCOPED_TRACE(one.what);
    assign(0);
    broker_.say(peer_.id(),
                proto::ServeRequest{
                    .run = 1, .plan_version = version_, .request = 1, .tokens = {1, 2, 3}, .tokens_max = 5});
    const auto of_pieces = [&] {
      return std::find_if(came_.begin(), came_.end(), [](const auto& it) { return it.first.edge == 0; });
    };
    ASSERT_TRUE(loop_.run_until(kPatience, [&] { return of_pieces() != came_.end(); }));
    const auto& [header, tensor] = *of_pieces();
    const auto pieces = serve::pieces_from(tensor, {.rows_max = 16, .context = 96});
    ASSERT_TRUE(pieces);
    one.lie(header.step, *pieces);
    expect_to_be_named(one.code);
  }
}

}  // namespace
}  // namespace weft::served
