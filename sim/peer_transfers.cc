#include "sim/peer_transfers.h"

#include <algorithm>
#include <memory>

#include "sim/peer_host.h"
#include "sim/peer_links.h"

namespace weft::sim {

using std::chrono::seconds;

void PeerTransfers::fetch_blob(const peer::FetchBlob& effect) {
  // Asked for again, without a limit: the first answer counts no more.
  const uint64_t number = shell_.blobs.begin_fetch(effect.sha256);
  const auto done = [this, effect, number](const Status& status) {
    if (!shell_.blobs.end_fetch(effect.sha256, number)) return;
    shell_.world.note(What::Blob, shell_.options.node, value_of(effect.sha256), status.has_value());
    if (status) shell_.blobs.hold(effect.sha256, static_cast<int64_t>(effect.size));
    shell_.act(shell_.machine->on_blob(shell_.world.now(), effect.sha256, status));
  };
  if (effect.source) return fetch_from_peer(effect, done);
  line_.request(
      100, {.answer = effect.rate},
      [this, effect]() -> PeerLine::Answer {
        const auto size = shell_.broker.blob_size(effect.sha256);
        if (!size) return {fail(size.error()), 100};
        return {{}, *size};
      },
      done);
}

// Over a connection of the two, as the shells have it (peer/service/blob_sources).
void PeerTransfers::fetch_from_peer(const peer::FetchBlob& effect, PeerLine::Done done) {
  const PeerLine::Done answer = line_.once(std::move(done));
  if (line_.breaks(answer)) return;
  const auto [node, epoch] = PeerLinks::node_at(effect.source->addresses.front());
  PeerHost* host = shell_.find_host(node);
  if (host == nullptr || host->address() != epoch || shell_.network.blocked(shell_.options.node, node))
    return shell_.world.after(seconds(5),
                              [answer] { answer(fail(ErrorCode::Unavailable, "nobody answers")); });
  shell_.world.after(seconds(60), [answer] { answer(fail(ErrorCode::Timeout, "nothing came")); });
  shell_.world.after(shell_.network.latency(shell_.options.node, node), [this, host, effect, answer] {
    if (!host->alive() || host->options().key != effect.source->peer)
      return answer(fail(ErrorCode::Unavailable, "connection refused"));
    host->give(effect, shell_.options.node, answer);
  });
}

void PeerTransfers::give(const peer::FetchBlob& effect, NodeId to, const PeerLine::Done& done) {
  const NodeId here = shell_.options.node;
  const auto bytes = shell_.blobs.size(effect.sha256);
  if (!bytes)
    return shell_.world.after(shell_.network.latency(here, to),
                              [done] { done(fail(ErrorCode::NotFound, "this peer has it not")); });
  line_.give(to, *bytes, effect.rate,
             [this, life = shell_.process.life(), here, to, sha256 = effect.sha256, done] {
               if (life != shell_.process.life() || shell_.network.blocked(here, to))
                 return done(fail(ErrorCode::Unavailable, "the connection ended"));
               shell_.world.note(What::Given, here, to);
               done({});
               shell_.run([this, sha256] {
                 shell_.act(shell_.machine->on_giving(shell_.world.now(), sha256, /*whole=*/true));
               });
             });
}

void PeerTransfers::fetch_data(const peer::FetchData& effect) {
  if (!shell_.stage) return;
  const auto assignment = shell_.stage->assignment;
  const JobSpec* spec = shell_.checkers.spec_of(assignment->run);
  const int64_t size = spec != nullptr ? spec->data_bytes : JobSpec{}.data_bytes;
  const auto position = std::make_shared<uint64_t>(0);
  const uint64_t step = peer::step_of_data(*assignment, effect.key);
  line_.request(
      150, {},
      [this, effect, assignment, position, size, step]() -> PeerLine::Answer {
        const auto at = shell_.broker.microbatch(assignment->run, assignment->data_key, *assignment,
                                                 effect.key.program, step, effect.key.microbatch);
        if (!at) return {fail(at.error()), 100};
        *position = *at;
        return {{}, size};
      },
      [this, effect, position](const Status& status) {
        shell_.world.note(What::Data, shell_.options.node, static_cast<uint64_t>(effect.key.program),
                          (effect.key.step << 16) | effect.key.microbatch);
        if (status && shell_.has_stage(effect.generation))
          shell_.microbatches.put_data(effect.key, *position);
        shell_.act(shell_.machine->on_data(
            shell_.world.now(), effect.generation, effect.key,
            status ? Result<uint64_t>(*position) : Result<uint64_t>(fail(status.error()))));
      });
}

void PeerTransfers::offer(const peer::OfferBlobs& effect) {
  const auto missing = std::make_shared<std::vector<Digest>>();
  line_.request(
      100 + 32 * static_cast<int64_t>(effect.blobs.size()), {},
      [this, effect, missing]() -> PeerLine::Answer {
        *missing = shell_.broker.missing(effect.blobs, effect.durable);
        return {};
      },
      [this, effect, missing](const Status& status) {
        shell_.world.note(What::Offered, shell_.options.node, effect.upload, status ? missing->size() : 999);
        shell_.act(shell_.machine->on_missing(shell_.world.now(), effect.upload,
                                              status ? Result<std::vector<Digest>>(*missing)
                                                     : Result<std::vector<Digest>>(fail(status.error()))));
      });
}

void PeerTransfers::upload(const peer::UploadBlob& effect) {
  const auto held = shell_.blobs.size(effect.sha256);
  if (!held) return shell_.world.fail("a blob is to be uploaded that is not here");
  const int64_t size = *held;
  line_.request(
      size, {.request = effect.rate},
      [this, effect, size]() -> PeerLine::Answer {
        return {shell_.broker.put_blob(effect.sha256, size, effect.durable), 100};
      },
      [this, effect](const Status& status) {
        shell_.world.note(What::Uploaded, shell_.options.node, value_of(effect.sha256), status.has_value());
        shell_.act(shell_.machine->on_uploaded(shell_.world.now(), effect.upload, effect.sha256, status));
      });
}

}  // namespace weft::sim
