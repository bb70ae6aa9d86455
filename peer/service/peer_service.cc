#include "peer/service/peer_service.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "peer/service/peer_stage.h"
#include "security/token.h"

namespace weft::peer {

using proto::Message;

namespace {
constexpr Duration kTickInterval = std::chrono::milliseconds(250);
constexpr Duration kTickMin = std::chrono::milliseconds(1);
constexpr uint32_t kTasksAhead = 2;  // the compute thread has the next one before it asks (bench/task_gap.cc)
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
}  // namespace

PeerService::PeerService(net::Loop& loop, PeerServiceOptions options)
    : loop_(loop), options_(std::move(options)) {}

PeerService::~PeerService() {
  stage_.reset();
  upload_.reset();
  if (compute_) {
    // The backend ends on the thread that made it.
    compute_->post(
        [backend = std::make_shared<std::unique_ptr<Backend>>(std::move(backend_))] { backend->reset(); });
    compute_.reset();
  }
}

Status PeerService::open() {
  WEFT_TRY_STATUS(start_links());
  std::array<uint8_t, 16> random{};
  security::fill_random(random);
  PeerOptions options;
  std::memcpy(&options_.hello.instance, random.data(), 8);
  std::memcpy(&options.session.seed, random.data() + 8, 8);
  options.session.hello = options_.hello;
  options.orphan_deadline = options_.orphan_deadline;
  options.stage.tasks_ahead = kTasksAhead;
  peer_.emplace(std::move(options));
  compute_ = std::make_unique<net::Worker>();
  upload_ = std::make_unique<net::Worker>();
  return {};
}

Status PeerService::start_links() {
  LinkService::Options options{
      .identity = options_.identity, .relay = options_.broker, .shape = options_.shape};
  options.listen = options_.listen;
  const auto is_current = [this](uint64_t generation) { return stage_ && stage_->generation == generation; };
  LinkService::Handlers handlers;
  handlers.on_all_up = [this, is_current](uint64_t generation) {
    if (is_current(generation)) carry_out(peer_->on_links_up(loop_.now(), generation));
  };
  handlers.on_down = [this, is_current](uint64_t generation, uint32_t stage, const Error& error) {
    if (is_current(generation)) carry_out(peer_->on_link_failed(loop_.now(), generation, stage, error));
  };
  handlers.on_tensor = [this, is_current](uint64_t generation, uint32_t stage,
                                          const proto::TensorHeader& header, dag::Tensor tensor) {
    if (is_current(generation)) on_tensor(stage, header, std::move(tensor));
  };
  WEFT_TRY(links_, LinkService::start(loop_, std::move(options), std::move(handlers)));
  if (!links_->endpoint()) return {};
  const std::string bound = net::to_string(*links_->endpoint());
  const std::string address = options_.advertise.empty() ? bound : options_.advertise;
  options_.hello.device->addresses = {address};
  log("info listening address=" + bound + " advertised=" + address);
  return {};
}

Status PeerService::run() {
  WEFT_TRY_STATUS(open());
  compute_->post([this] {
    auto made = options_.make_backend();
    loop_.post([this, backend = std::make_shared<Result<std::unique_ptr<Backend>>>(std::move(made))] {
      if (!*backend) {
        result_ = fail((*backend).error());
        return loop_.stop();
      }
      backend_ = std::move(**backend);
      carry_out(peer_->start(loop_.now()));
      tick();
    });
  });
  loop_.run();
  timer_.reset();
  carrying_out_ = true;  // nothing is wanted any more
  drop_runner();
  close_links();
  if (control_) control_->close(std::chrono::seconds(1));
  close_bulk({ErrorCode::Cancelled, "the peer leaves"});
  return result_;
}

void PeerService::request_drain() {
  loop_.post([this] {
    if (peer_) carry_out(peer_->request_drain(loop_.now()));
  });
}

void PeerService::stop() { loop_.stop(); }

void PeerService::tick() {
  timer_.reset();
  carry_out(peer_->on_tick(loop_.now(), options_.memory_free ? options_.memory_free() : Bytes{}));
  arm_timer();
}

// The machine's deadlines are kept more exactly than by the ticks.
void PeerService::arm_timer() {
  const Instant now = loop_.now();
  Instant at = now + kTickInterval;
  if (const auto deadline = peer_->next_deadline(now)) at = std::clamp(*deadline, now + kTickMin, at);
  if (timer_ && timer_at_ <= at) return;
  timer_at_ = at;
  timer_ = loop_.after(at - now, [this] { tick(); });
}

void PeerService::carry_out(PeerEffects effects) {
  for (PeerEffect& effect : effects) effects_.push_back(std::move(effect));
  if (carrying_out_) return;
  carrying_out_ = true;
  while (!effects_.empty()) {
    PeerEffect effect = std::move(effects_.front());
    effects_.pop_front();
    carry_out_one(effect);
  }
  carrying_out_ = false;
  if (timer_) arm_timer();
}

void PeerService::carry_out_one(PeerEffect& effect) {
  std::visit(Overloaded{
                 [&](ConnectToBroker&) { connect_control(); },
                 [&](DropBroker&) {
                   drop_control({ErrorCode::Unavailable, "the broker was given up"});
                 },
                 [&](TellBroker& say) { tell(std::move(say.message)); },
                 [&](Leave& leave) {
                   result_ = leave.why;
                   loop_.stop();
                 },
                 [&](Say& say) { log(say.line); },
                 [&](OpenLinks& open) { open_links(open); },
                 [&](CloseLinks&) { close_links(); },
                 [&](InviteLink& invite) { links_->invite(invite.ticket); },
                 [&](FetchBlob& fetch) { fetch_blob(fetch); },
                 [&](ForgetBlobs& forget) { forget_blobs(forget); },
                 [&](MakeRunner& make) { make_runner(make); },
                 [&](DropRunner&) { drop_runner(); },
                 [&](RunTask& run) { run_task(run.task); },
                 [&](FetchData& fetch) { fetch_data(fetch); },
                 [&](DropMicrobatches& drop) {
                   for (const MicrobatchKey& key : drop.keys) stage_->inbox.drop(key);
                 },
                 [&](OfferBlobs& blobs) { offer(blobs); },
                 [&](UploadBlob& blob) { put(blob); },
             },
             effect);
}

// ---- the control connection
// --------------------------------------------------------------------------------------

void PeerService::connect_control() {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = options_.broker_key;
  if (options_.shape) options.shape = options_.shape("");
  control_attempt_ = net::connect(loop_, options_.broker, options, [this](Result<net::ConnectionPtr> result) {
    if (!result) return carry_out(peer_->on_connect_failed(loop_.now(), result.error()));
    control_ = std::move(*result);
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kMessageSizeMax;
    control_->set_limits(limits);
    control_->start({.on_frame = [this](net::InFrame frame) { on_control_frame(frame); },
                     .on_closed =
                         [this](const Error& error) {
                           carry_out(peer_->on_lost(loop_.now(), error));
                           drop_control(error);
                         }});
    carry_out(peer_->on_connected(loop_.now()));
  });
}

void PeerService::drop_control(const Error& error) {
  if (control_) control_->close();
  control_.reset();
  close_bulk(error);
}

void PeerService::tell(Message message) {
  if (!control_) return;
  if (auto* step = std::get_if<proto::StepReport>(&message); step != nullptr && step->updated && stage_)
    add_bytes_sent(*step);
  control_->send(message_frame(message));
}

// The machine knows for whom it waited, the links what they carried.
void PeerService::add_bytes_sent(proto::StepReport& step) const {
  std::vector<proto::LinkUse> links = links_->take_use();
  for (proto::LinkUse& link : links)
    for (const proto::LinkUse& waited : step.links)
      if (waited.stage == link.stage) link.seconds_waiting = waited.seconds_waiting;
  step.links = std::move(links);
}

void PeerService::on_control_frame(const net::InFrame& frame) {
  Result<Message> message =
      fail(ErrorCode::InvalidArgument, "a frame of a kind that the broker does not send here");
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message))
    message = proto::decode(frame.payload.span());
  if (message) return carry_out(peer_->on_message(loop_.now(), *message));
  const Error error = message.error().within("the broker breaks the protocol");
  carry_out(peer_->on_lost(loop_.now(), error));
  drop_control(error);
}

}  // namespace weft::peer
