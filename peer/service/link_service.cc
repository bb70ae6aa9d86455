#include "peer/service/link_service.h"

#include <algorithm>

#include "peer/service/encoding.h"

namespace weft::peer {

namespace {
constexpr Duration kTickInterval = std::chrono::milliseconds(250);
constexpr Duration kLookForUnsent = std::chrono::milliseconds(2);
constexpr int64_t kCheckedHereMax = 64 << 10;  // bytes: microseconds
}  // namespace

Result<std::unique_ptr<LinkService>> LinkService::start(net::Loop& owner, Options options,
                                                        Handlers handlers) {
  std::unique_ptr<LinkService> service(new LinkService(owner, std::move(options), std::move(handlers)));
  if (service->options_.listen) {
    net::ListenOptions listen;
    listen.identity = service->options_.identity;
    listen.shape = service->options_.accepted_shape;
    WEFT_TRY(service->listener_,
             net::Listener::open(service->loop_, *service->options_.listen, listen,
                                 [service = service.get()](const net::ConnectionPtr& connection) {
                                   service->arrivals_.add(connection);
                                 }));
    service->endpoint_ = service->listener_->endpoint();
  }
  service->thread_ = std::thread([service = service.get()] { service->run(); });
  return service;
}

LinkService::~LinkService() {
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  decoder_.reset();  // it posts to the loop
}

void LinkService::run() {
  prober_ = std::make_unique<Prober>(link_options(), [this](const proto::ProbeReport& report) {
    tell([report](const Handlers& handlers) {
      if (handlers.on_probed) handlers.on_probed(report);
    });
  });
  blobs_ = std::make_unique<BlobServer>(
      BlobServer::Options{.loop = &loop_,
                          .look_up = [this](const proto::GetBlob& request,
                                            const BlobServer::Found& found) { look_up(request, found); },
                          .yields = [this] { return anything_unsent(); },
                          .on_giving =
                              [this](const Digest& sha256, bool whole) {
                                tell([sha256, whole](const Handlers& handlers) {
                                  if (handlers.on_giving) handlers.on_giving(sha256, whole);
                                });
                              }});
  tick();
  loop_.run();
  timer_.reset();
  urgent_timer_.reset();
  blobs_.reset();
  prober_.reset();
  stages_.clear();
  arrivals_.clear();
  listener_.reset();
}

void LinkService::tick() {
  for (const auto& [generation, open] : stages_) open.links->on_tick();
  blobs_->on_tick();
  publish_use();
  arrivals_.on_tick();
  timer_ = loop_.after(kTickInterval, [this] { tick(); });
}

// ---- from the owner, and to it

void LinkService::open(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment) {
  loop_.post([this, generation, assignment = std::move(assignment)] { open_now(generation, assignment); });
}

void LinkService::close(uint64_t generation) {
  loop_.post([this, generation] { close_now(generation); });
}

void LinkService::expect(uint64_t generation, std::vector<dag::RowSpec> edges) {
  loop_.post([this, generation, edges = std::move(edges)] {
    if (Links* links = links_of(generation)) links->expect(edges);
  });
}

void LinkService::lose_connections(const Error& error) {
  loop_.post([this, error] {
    for (const auto& [generation, open] : stages_) open.links->lose_connections(error);
  });
}

void LinkService::invite(const proto::Secret& ticket) {
  loop_.post([this, ticket] {
    for (const auto& [generation, open] : stages_) open.links->on_invitation(ticket);
    prober_->on_invitation(ticket);
  });
}

void LinkService::probe(const proto::ProbeLink& probe) {
  loop_.post([this, probe] {
    prober_->begin(probe);
    arrivals_.match();
  });
}

void LinkService::send(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header,
                       dag::Tensor payload) {
  loop_.post([this, generation, seat, header, payload = std::move(payload)] {
    Links* links = links_of(generation);
    if (links == nullptr) return;
    links->send(seat, header, payload);
    publish_use();
    publish_urgent();
  });
}

// Nobody says when a socket's buffer has become empty: while it has not, it is looked at again.
void LinkService::publish_urgent() {
  if (!options_.urgent) return;
  const bool waiting = anything_unsent();
  options_.urgent->set_waiting(waiting);
  if (!waiting) return urgent_timer_.reset();
  if (!urgent_timer_)
    urgent_timer_ = loop_.after(kLookForUnsent, [this] {
      urgent_timer_.reset();
      publish_urgent();
    });
}

std::vector<proto::LinkUse> LinkService::take_use(uint64_t generation) {
  const MutexLock lock(mutex_);
  std::vector<proto::LinkUse> uses;
  const auto open = use_.find(generation);
  if (open == use_.end()) return uses;
  for (auto& [seat, use] : open->second) uses.push_back(std::exchange(use, {.seat = seat}));
  return uses;
}

void LinkService::count(uint64_t generation, plan::Seat seat, const Encoded& encoded) {
  const MutexLock lock(mutex_);
  const auto open = use_.find(generation);
  if (open == use_.end()) return;
  proto::LinkUse& use = open->second[seat];
  use.seat = seat;
  use.bytes_dense += encoded.bytes_dense;
  use.bytes_encoded += encoded.bytes_encoded;
  if (!encoded.relative_error) return;
  ++use.errors;
  use.error_sum += *encoded.relative_error;
}

void LinkService::publish_use() {
  for (const auto& [generation, open] : stages_) {
    const auto uses = open.links->take_use();
    const MutexLock lock(mutex_);
    Use& sums = use_[generation];
    for (const proto::LinkUse& use : uses) {
      proto::LinkUse& sum = sums[use.seat];
      sum.seat = use.seat;
      sum.bytes_sent += use.bytes_sent;
      if (use.way != proto::LinkWay::Unsaid) sum.way = use.way;
      sum.bytes_timed += use.bytes_timed;
      sum.seconds_timed += use.seconds_timed;
      sum.fastest_bytes_per_second = std::max(sum.fastest_bytes_per_second, use.fastest_bytes_per_second);
    }
  }
}

void LinkService::tell(std::function<void(const Handlers&)> what) {
  owner_.post([handlers = std::weak_ptr(handlers_), what = std::move(what)] {
    if (const auto here = handlers.lock()) what(*here);
  });
}

void LinkService::hand_over(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header,
                            dag::Tensor payload) {
  publish_use();
  untaken_ += static_cast<uint64_t>(header.spec.bytes().value);
  if (untaken_ > options_.untaken_bytes_max && !is_paused_) pause_reading(true);
  const OfRun run = stages_.at(generation).run;
  if (is_decoded_here(run, header)) return decode(generation, run, seat, header, payload);
  if (!decoder_) decoder_ = std::make_unique<net::Worker>();
  ++decoding_;
  decoder_->post([this, generation, run, seat, header, payload = std::move(payload)] {
    decode(generation, run, seat, header, payload);
    --decoding_;  // what comes after it goes behind it
  });
}

// What takes no longer than waking the other thread up, as long as nothing is to stay behind.
bool LinkService::is_decoded_here(const OfRun& run, const proto::TensorHeader& header) const {
  return decoding_ == 0 && header.codec.kind == compress::Kind::Dense &&
         (is_taken_unseen(header, run.takes_any) || !must_be_finite(header) ||
          header.spec.bytes().value <= kCheckedHereMax);
}

void LinkService::decode(uint64_t generation, const OfRun& run, plan::Seat seat,
                         const proto::TensorHeader& header, const dag::Tensor& payload) {
  auto tensor = decode_tensor(header, payload, run.seed);
  if (tensor && !is_taken_unseen(header, run.takes_any) && !is_fit(header, *tensor)) {
    tell([generation, seat, header](const Handlers& handlers) {
      if (handlers.on_not_finite) handlers.on_not_finite(generation, seat, header);
    });
    loop_.post([this, size = static_cast<uint64_t>(header.spec.bytes().value)] { on_taken(size); });
    return;
  }
  if (tensor) return pass_on(generation, seat, header, std::move(*tensor));
  const auto size = static_cast<uint64_t>(header.spec.bytes().value);
  loop_.post([this, generation, seat, size, error = tensor.error()] {
    on_taken(size);
    if (Links* links = links_of(generation)) links->refuse(seat, error);
  });
}

void LinkService::pass_on(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header,
                          dag::Tensor tensor) {
  const uint64_t size = tensor.bytes().size();
  tell([this, generation, seat, header, size, tensor = std::move(tensor)](const Handlers& handlers) {
    handlers.on_tensor(generation, seat, header, tensor);
    loop_.post([this, size] { on_taken(size); });
  });
}

void LinkService::on_taken(uint64_t size) {
  untaken_ -= size;
  if (!is_paused_ || untaken_ > options_.untaken_bytes_max / 2) return;
  pause_reading(false);
}

void LinkService::pause_reading(bool paused) {
  is_paused_ = paused;
  for (const auto& [generation, open] : stages_) open.links->pause_reading(paused);
}

// ---- the stage's links

void LinkService::open_now(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment) {
  close_now(generation);
  // The lines of a replica that has its state are idle until all agree.
  if (!assignment->local || !assignment->sources.empty()) prober_->end("the peer was given a stage");
  {
    const MutexLock lock(mutex_);
    use_[generation];
  }
  Open& open = stages_[generation];
  open.run = {assignment->training.seed, !assignment->serve && assignment->training.skips_diverged()};
  open.copy_rate = assignment->copy_rate;
  set_blob_rate();
  open.links = std::make_unique<Links>(
      link_options(), std::move(assignment),
      Links::Handlers{
          .on_all_up =
              [this, generation] {
                tell([generation](const Handlers& handlers) { handlers.on_all_up(generation); });
              },
          .on_down =
              [this, generation](plan::Seat seat, const Error& error) {
                tell([generation, seat, error](const Handlers& handlers) {
                  handlers.on_down(generation, seat, error);
                });
              },
          .on_tensor = [this, generation](
                           plan::Seat seat, const proto::TensorHeader& header,
                           dag::Tensor tensor) { hand_over(generation, seat, header, std::move(tensor)); }});
  open.links->pause_reading(is_paused_);
  open.links->start();
  arrivals_.match();
}

Links* LinkService::links_of(uint64_t generation) const {
  const auto open = stages_.find(generation);
  return open == stages_.end() ? nullptr : open->second.links.get();
}

bool LinkService::anything_unsent() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const auto& open) { return open.second.links->unsent() > 0; });
}

// What all stages' copies may take; without a limit where one of them has none.
void LinkService::set_blob_rate() {
  uint64_t rate = 0;
  for (const auto& [generation, open] : stages_) {
    if (open.copy_rate == 0) return blobs_->set_rate(0);
    rate += open.copy_rate;
  }
  blobs_->set_rate(rate);
}

LinkOptions LinkService::link_options() {
  LinkOptions options;
  options.loop = &loop_;
  options.identity = options_.identity;
  options.relay = options_.relay;
  options.shape = options_.shape;
  options.streams = options_.streams;
  options.may_dial = options_.may_dial;
  return options;
}

void LinkService::close_now(uint64_t generation) {
  stages_.erase(generation);
  set_blob_rate();
  publish_urgent();
  const MutexLock lock(mutex_);
  use_.erase(generation);
}

// ---- connections from other peers

LinkArrivals::Takers LinkService::takers() {
  return {.link =
              [this](const net::ConnectionPtr& connection, const proto::LinkHello& hello) {
                LinkArrivals::Taken taken;
                for (const auto& [generation, open] : stages_)
                  if (!taken) taken = open.links->offer(connection, hello);
                return taken;
              },
          .probe = [this](const net::ConnectionPtr& connection,
                          const proto::ProbeHello& hello) { return prober_->offer(connection, hello); },
          .blobs = [this](const net::ConnectionPtr& connection,
                          const proto::GetBlob& request) { return blobs_->offer(connection, request); }};
}

void LinkService::look_up(const proto::GetBlob& request, const BlobServer::Found& found) {
  tell([this, request, found](const Handlers& handlers) {
    const HeldBlob held = handlers.on_get_blob ? handlers.on_get_blob(request) : HeldBlob{};
    loop_.post([found, held] { found(held); });
  });
}

}  // namespace weft::peer
