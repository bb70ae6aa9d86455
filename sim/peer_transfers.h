// What a simulated peer fetches and uploads: blobs, of the broker and of other peers, and microbatches of
// data.
#pragma once

#include <functional>

#include "sim/peer_line.h"
#include "sim/peer_shell.h"

namespace weft::sim {

class PeerTransfers {
 public:
  explicit PeerTransfers(PeerShell& shell)
      : shell_(shell),
        line_(shell.world, shell.network, shell.broker, shell.process, shell.draw, shell.options.node) {}

  void begin() { line_.begin(); }  // with the process
  void set_fails(bool fails) { line_.set_fails(fails); }
  void give_up_uploads() { line_.give_up_uploads(); }

  void fetch_blob(const peer::FetchBlob& effect);
  void fetch_data(const peer::FetchData& effect);
  void offer(const peer::OfferBlobs& effect);
  void upload(const peer::UploadBlob& effect);
  // To another peer, which asks for it.
  void give(const peer::FetchBlob& effect, NodeId to, const PeerLine::Done& done);

 private:
  void fetch_from_peer(const peer::FetchBlob& effect, PeerLine::Done done);

  PeerShell& shell_;
  PeerLine line_;
};

}  // namespace weft::sim
