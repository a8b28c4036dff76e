"""From a trial to worker processes: started here, over ranks, or inside an existing torchrun."""
