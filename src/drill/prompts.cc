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

}  // namespace holdfast::drill
