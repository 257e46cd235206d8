#include "drill/prompts.h"

namespace holdfast::drill {

std::vector<std::string> built_in_prompts() {
  return {
      "T",
      "KEEPER:\n",
      "CAPTAIN:\nHow stands the light upon the point tonight?\n\nKEEPER:\n",
      "The tide came in at nine, and by the hour of ten the lower stairs were gone.",
      "FIRST SAILOR:\nThe rope is cut, the anchor dragging; hear it, sir.\n\nCAPTAIN:\nLet go "
      "the second, and keep her head to the wind.\n\nFIRST SAILOR:\nShe will not hold, my lord; "
      "the ground is weed and sand.\n\nCAPTAIN:\n",
      "Of all that grows below the line of tide the kelp alone is never still: its leaves are "
      "carried out and carried home again with every wave, and what it holds by is a fist of "
      "roots about one stone. The stone is all its house. The fishers know it, and they tie "
      "their boats in summer to the longest stems, and say that he who finds the stone has found "
      "the field. So in the year of the great storm, when every boat was lost, and every wall "
      "along the harbour fell, the old man went down at the lowest ebb, and there",
  };
}

std::vector<std::vector<std::int32_t>> built_in_ids(std::int64_t vocab_size) {
  constexpr std::size_t kLengths[] = {1, 5, 29, 40, 97, 230};
  std::vector<std::vector<std::int32_t>> prompts;
  std::uint64_t state = 1;  // of Knuth's MMIX generator
  for (const std::size_t length : kLengths) {
    std::vector<std::int32_t>& ids = prompts.emplace_back();
    while (ids.size() < length) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::uint64_t id = (state >> 33) % static_cast<std::uint64_t>(vocab_size);
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  return prompts;
}

}  // namespace holdfast::drill
